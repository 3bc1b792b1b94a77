// Drafts what has followed the last token most often in this text.
#include "drafters/bigram.hpp"

#include <algorithm>
#include <cassert>

#include "drafters/table.hpp"

namespace specllama {

namespace {

constexpr int sure = 4;  // so many times make a token of the second class

}  // namespace

BigramDrafter::BigramDrafter(const std::vector<int32_t> & corpus) : Drafter(Source::bigram) {
    for (std::size_t i = 1; i < corpus.size(); ++i) {
        count(corpus[i - 1], corpus[i], 1);
    }
}

std::vector<DraftToken> BigramDrafter::offer(const DraftRequest & request, const Proposal & proposal,
                                             std::size_t most) {
    assert(text_ == request.history);
    std::vector<DraftToken> offer;
    int32_t last = proposal.tokens.empty() ? request.history.back() : proposal.tokens.back();
    while (offer.size() < most && !request.target.is_eog(last)) {
        const auto found = followers_.find(last);
        if (found == followers_.end()) {
            break;
        }
        // Of several as frequent ones the first: an offer may depend on nothing but the text.
        const auto best = std::max_element(found->second.begin(), found->second.end(),
                                           [](const auto & a, const auto & b) { return a.second < b.second; });
        if (best == found->second.end() || static_cast<std::size_t>(best->first) >= request.target.n_vocab()) {
            break;
        }
        last = best->first;
        offer.push_back({last, {Source::bigram, best->second >= sure ? 1U : 0U, 0}, {}});
    }
    return offer;
}

void BigramDrafter::observe(const DecodedBatch & batch) {
    while (text_.size() > batch.unchanged) {
        const int32_t last = text_.back();
        text_.pop_back();
        if (!text_.empty()) {
            count(text_.back(), last, -1);
        }
    }
    while (text_.size() < batch.history.size()) {
        if (!text_.empty()) {
            count(text_.back(), batch.history[text_.size()], 1);
        }
        text_.push_back(batch.history[text_.size()]);
    }
}

void BigramDrafter::count(int32_t token, int32_t next, int by) {
    auto & times = followers_[token][next];
    times += by;
    if (times == 0) {
        followers_[token].erase(next);
    }
}

// How often a token is accepted that has followed seldom, and often: a guess, which the first texts correct.
DrafterPriors bigram_priors() { return DrafterPriors::apart({0.2, 0.5}); }

std::unique_ptr<Drafter> make_bigram(const DrafterParts & parts) {
    return std::make_unique<BigramDrafter>(parts.corpus);
}

}  // namespace specllama
