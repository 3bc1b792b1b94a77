// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#include "lookup.hpp"

#include <algorithm>

namespace specllama {

namespace {

constexpr int32_t separator = -1;  // no token: no match reaches over it

}  // namespace

Lookup::Lookup(const std::vector<int32_t> & corpus) {
    for (const int32_t token : corpus) {
        index_.append(token);
    }
    if (!corpus.empty()) {
        index_.append(separator);
    }
    start_ = index_.size();
}

void Lookup::begin(const std::vector<int32_t> & history) {
    std::size_t same = 0;
    while (same < std::min(known_, history.size()) && index_[start_ + same] == history[same]) {
        ++same;
    }
    rewind(same);
    commit(history);
}

void Lookup::rewind(std::size_t count) {
    known_ = std::min(known_, count);
    index_.truncate(start_ + known_);
}

void Lookup::commit(const std::vector<int32_t> & history) {
    index_.truncate(start_ + known_);
    for (; known_ < history.size(); ++known_) {
        index_.append(history[known_]);
    }
}

Lookup::Found Lookup::look_up(std::size_t most, const Decoder & target) const {
    Found found;
    const SuffixIndex::Match match = index_.longest();
    for (std::size_t i = 0; match.length > 0 && i < most; ++i) {
        // A match that reaches the end of the text is a repetition: it goes on with what it has just found.
        const std::size_t at = match.next + i;
        const int32_t token = at < index_.size() ? index_[at] : found.tokens[at - index_.size()];
        if (token < 0 || static_cast<std::size_t>(token) >= target.n_vocab()) {
            break;
        }
        found.tokens.push_back(token);
        found.expectations.push_back(Expectation::of_lookup(match.length + i, match.num_other > 0));
        if (target.is_eog(token)) {
            break;
        }
    }
    return found;
}

}  // namespace specllama
