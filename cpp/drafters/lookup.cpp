// Drafts the tokens that followed an earlier occurrence of the text's end (prompt lookup; Saxena 2023). Needs no
// decode.
#include "drafters/lookup.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include "drafters/table.hpp"

namespace specllama {

namespace {

constexpr int32_t separator = -1;  // is no token, so no match reaches over it

// The lengths of a match, in tokens, that separate the classes, and acceptance rates measured on code, prose and
// questions (greedy): first for matches whose occurrences all continue alike, then for matches whose occurrences
// differ.
constexpr std::size_t num_lengths = 8;
constexpr std::array<std::size_t, num_lengths - 1> lengths{3, 4, 5, 7, 10, 16, 32};
constexpr std::array<double, 2 * num_lengths> match_priors{0.50, 0.62, 0.66, 0.72, 0.80, 0.82, 0.88, 0.95,
                                                           0.15, 0.25, 0.30, 0.30, 0.40, 0.50, 0.60, 0.70};

}  // namespace

LookupDrafter::LookupDrafter(const std::vector<int32_t> & corpus) : Drafter(Source::lookup) {
    append(corpus);
    common_ = start_;
}

void LookupDrafter::append(const std::vector<int32_t> & corpus) {
    for (const int32_t token : corpus) {
        index_.append(token);
    }
    if (!corpus.empty()) {
        index_.append(separator);
    }
    start_ = index_.size();
}

void LookupDrafter::begin(const Task & task) {
    if (task.corpus == corpus_) {
        return;
    }
    corpus_ = task.corpus;
    index_.truncate(common_);
    append(corpus_);
    known_ = 0;  // the next observe() adds the history again
}

void LookupDrafter::observe(const DecodedBatch & batch) {
    index_.truncate(start_ + std::min(known_, batch.unchanged));
    while (index_.size() < start_ + batch.history.size()) {
        index_.append(batch.history[index_.size() - start_]);
    }
    known_ = batch.history.size();
}

std::vector<DraftToken> LookupDrafter::offer(const DraftRequest & request, const Proposal & proposal,
                                             std::size_t most) {
    assert(known_ == request.history.size());
    // The index may hold more tokens from a round that was given up.
    index_.truncate(std::min(index_.size(), start_ + known_ + proposal.tokens.size()));
    while (index_.size() < start_ + known_ + proposal.tokens.size()) {
        index_.append(proposal.tokens[index_.size() - start_ - known_]);
    }
    std::vector<DraftToken> offer;
    const SuffixIndex::Match match = index_.longest();
    for (std::size_t i = 0; match.length > 0 && i < most; ++i) {
        // A match that reaches the end of the text is a repetition, which continues with the tokens found so far.
        const std::size_t at = match.next + i;
        const int32_t token = at < index_.size() ? index_[at] : offer[at - index_.size()].token;
        if (token < 0 || static_cast<std::size_t>(token) >= request.target.n_vocab()) {
            break;
        }
        offer.push_back({token, lookup_expectation(match.length + i, match.num_other > 0), {}});
        if (request.target.is_eog(token)) {
            break;
        }
    }
    return offer;
}

Expectation lookup_expectation(std::size_t length, bool disputed) {
    const auto above = std::upper_bound(lengths.begin(), lengths.end(), length);
    const auto bucket = static_cast<std::size_t>(above - lengths.begin());
    return {Source::lookup, bucket + (disputed ? num_lengths : 0), 0};
}

DrafterPriors lookup_priors() { return DrafterPriors::runs({match_priors.begin(), match_priors.end()}); }

}  // namespace specllama
