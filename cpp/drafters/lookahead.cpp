// Drafts n-grams that the target itself has generated in a window beside the text (lookahead decoding; Fu et al. 2024,
// arXiv 2402.02057, algorithm 2). Needs no decode of its own, but rows in each decode of the target.
#include "drafters/lookahead.hpp"

#include <algorithm>
#include <utility>

#include "drafters/table.hpp"
#include "math/logits_scan.hpp"
#include "math/random.hpp"

namespace specllama {

namespace {

class LookaheadDrafter final : public Drafter {
public:
    explicit LookaheadDrafter(std::shared_ptr<LookaheadWindow> window)
        : Drafter(Source::lookahead), window_(std::move(window)) {}

    void begin(const Task &) override { has_begun_ = false; }
    void observe(const DecodedBatch & batch) override;
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    std::vector<BranchRow> branch_rows(std::size_t most) override;
    void read_branch_rows(const std::vector<const float *> & logits, std::size_t n_vocab) override;
    // False: a pace does not know the cost of branch rows.
    bool can_be_paced() const override { return false; }

private:
    std::vector<std::vector<int32_t>> drawn_from(const std::vector<int32_t> & text) const;

    std::shared_ptr<LookaheadWindow> window_;
    bool has_begun_ = false;
    std::size_t size_ = 0;       // length of the text at the last observe()
    std::vector<int32_t> said_;  // the target's tokens after the window's last level, in this round
};

// The window's first tokens: tokens from random places of the text. The places do not depend on the seed.
std::vector<std::vector<int32_t>> LookaheadDrafter::drawn_from(const std::vector<int32_t> & text) const {
    std::vector<std::vector<int32_t>> levels(window_->n_gram() - 1, std::vector<int32_t>(window_->columns()));
    std::uint64_t number = 0;
    for (std::vector<int32_t> & level : levels) {
        std::generate(level.begin(), level.end(), [&] { return text[mix64(++number) % text.size()]; });
    }
    return levels;
}

void LookaheadDrafter::observe(const DecodedBatch & batch) {
    if (!has_begun_ && !batch.history.empty()) {
        window_->begin(drawn_from(batch.history));
        has_begun_ = true;
    } else if (!said_.empty() && batch.unchanged == size_ && batch.history.size() > size_) {
        window_->advance(said_, batch.history.size() - size_);
    }
    said_.clear();
    size_ = batch.history.size();
}

// Offers the rest of the newest n-gram that begins with the last token of the text. If the proposal has tokens already,
// the n-gram begins with the last of these, and the offer is shorter.
std::vector<DraftToken> LookaheadDrafter::offer(const DraftRequest & request, const Proposal & proposal,
                                                std::size_t most) {
    std::vector<DraftToken> offer;
    const std::size_t drafted = proposal.tokens.size();
    if (!has_begun_ || drafted + 1 >= window_->n_gram()) {
        return offer;
    }
    const int32_t last = drafted > 0 ? proposal.tokens.back() : request.history.back();
    const std::vector<int32_t> * rest = window_->newest(last);
    for (std::size_t i = 0; rest != nullptr && i < std::min(most, rest->size() - drafted); ++i) {
        offer.push_back({(*rest)[i], {Source::lookahead, 0, 0}, {}});
        if (request.target.is_eog((*rest)[i])) {
            break;
        }
    }
    return offer;
}

// Column i is branch i: the branch sees level 0 up to column i, and of the other levels only its own column. The text's
// last token takes the place of the first token of level 0.
std::vector<BranchRow> LookaheadDrafter::branch_rows(std::size_t most) {
    said_.clear();
    const std::size_t columns = window_->columns();
    const auto & levels = window_->levels();
    std::vector<BranchRow> rows;
    if (!has_begun_ || columns * levels.size() - 1 > most) {
        return rows;
    }
    for (std::size_t i = 1; i < columns; ++i) {
        rows.push_back({levels[0][i], i, i, columns - i, false});
    }
    for (std::size_t j = 1; j < levels.size(); ++j) {
        for (std::size_t i = 0; i < columns; ++i) {
            rows.push_back({levels[j][i], j + i, i, 1, j + 1 == levels.size()});
        }
    }
    return rows;
}

void LookaheadDrafter::read_branch_rows(const std::vector<const float *> & logits, std::size_t n_vocab) {
    for (const float * row : logits) {
        said_.push_back(std::max(argmax(row, n_vocab), 0));  // a row of NaNs has no largest logit
    }
}

}  // namespace

DrafterPriors lookahead_priors() { return DrafterPriors::apart({0.5}); }

std::shared_ptr<Drafter> make_lookahead(std::shared_ptr<LookaheadWindow> window) {
    return std::make_shared<LookaheadDrafter>(std::move(window));
}

}  // namespace specllama
