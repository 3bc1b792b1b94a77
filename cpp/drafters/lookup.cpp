// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#include "lookup.hpp"

#include <algorithm>

namespace specllama {

namespace {

constexpr int32_t separator = -1;  // no token: no match reaches over it

}  // namespace

LookupDrafter::LookupDrafter(const std::vector<int32_t> & corpus) {
    for (const int32_t token : corpus) {
        index_.append(token);
    }
    if (!corpus.empty()) {
        index_.append(separator);
    }
    start_ = index_.size();
}

void LookupDrafter::begin(const std::vector<int32_t> & history) {
    std::size_t same = 0;
    while (same < std::min(index_.size() - start_, history.size()) && index_[start_ + same] == history[same]) {
        ++same;
    }
    rewind(same);
    commit(history);
}

void LookupDrafter::commit(const std::vector<int32_t> & history) {
    for (std::size_t i = index_.size() - start_; i < history.size(); ++i) {
        index_.append(history[i]);
    }
}

void LookupDrafter::propose(const DraftRequest & request, Proposal & out) {
    commit(request.history);
    const SuffixIndex::Match match = index_.longest();
    if (match.length == 0) {
        return;
    }
    for (std::size_t i = 0; i < request.gamma; ++i) {
        // A match that reaches the end of the text is a repetition: it goes on with what it has just drafted.
        const std::size_t at = match.next + i;
        const int32_t token = at < index_.size() ? index_[at] : out.tokens[at - index_.size()];
        if (token < 0 || static_cast<std::size_t>(token) >= request.n_vocab) {
            return;
        }
        out.q.push_back({{token}, {1.0}});
        out.tokens.push_back(token);
    }
}

}  // namespace specllama
