// Drafts with a head that reads only the target's final state (heads/state_head.hpp).
#include "drafters/state_head.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/last_state.hpp"
#include "drafters/table.hpp"
#include "llama/clock.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

namespace {

// The drafter has no memory: it needs only the target's state of the text's last token but one. Medusa and blockwise
// heads compute all places at once, before a token is drawn. Hydra computes place by place, from the tokens drafted so
// far. Either way each token has its q.
class StateHeadDrafter final : public LastStateHead {
public:
    explicit StateHeadDrafter(std::shared_ptr<const HeadInUse> in_use)
        : LastStateHead(Source::state_head, in_use->n_embd()), in_use_(std::move(in_use)), head_(in_use_->head()) {}

    void begin(const Task &) override {
        head_ = in_use_->head();
        num_said_ = 0;
    }
    void observe(const DecodedBatch & batch) override {
        LastStateHead::observe(batch);
        num_said_ = 0;
    }

    // 0, and so no part in a round, while there is no head.
    std::size_t missing() const override { return head_ == nullptr ? 0 : LastStateHead::missing(); }
    // Draws nothing after the head's last place.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    std::size_t n_batch() const override { return head_ == nullptr ? 1 : head_->size(); }
    std::size_t block() const override { return head_ == nullptr || head_->reads_tokens() ? 1 : head_->size(); }
    double decode_seconds() const override { return seconds_; }
    std::size_t num_decoded() const override { return num_computed_; }

private:
    void compute(const std::vector<std::int32_t> & tokens, std::size_t first, std::size_t count);

    std::shared_ptr<const HeadInUse> in_use_;
    std::shared_ptr<const StateHead> head_;  // of this generation; null: there is none yet
    double seconds_ = 0.0;
    std::size_t num_computed_ = 0;
    std::vector<float> said_;     // logits of the places that were computed last
    std::size_t first_said_ = 0;  // the first of these places
    std::size_t num_said_ = 0;    // number of these places; 0: none was computed in this round
    std::vector<float> logits_;   // the logits of one place
};

std::optional<DraftToken> StateHeadDrafter::draw(const DraftRequest & request, std::size_t before,
                                                 const Proposal & proposal) {
    const std::size_t place = proposal.tokens.size();
    if (!is_ready() || place >= head_->size()) {
        return std::nullopt;
    }
    if (head_->reads_tokens()) {
        std::vector<std::int32_t> tokens{request.history.back()};
        tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.end());
        compute(tokens, place, 1);
    } else if (place < first_said_ || place >= first_said_ + num_said_) {
        const std::size_t count = request.paced ? head_->size() : std::min(head_->size(), request.gamma);
        compute({}, 0, std::max(count, place + 1));
    }
    head_->spread(said_.data() + (place - first_said_) * head_->num_said(), logits_);
    const std::size_t n = std::min(request.target.n_vocab(), logits_.size());
    return drawn_if_allowed(request, proposal, source(), before, logits_.data(), n, nullptr);
}

void StateHeadDrafter::compute(const std::vector<std::int32_t> & tokens, std::size_t first, std::size_t count) {
    const double before = seconds_;
    {
        const Stopwatch stopwatch(seconds_);
        head_->say(state(), tokens.data(), first, count, said_);
    }
    first_said_ = first;
    num_said_ = count;
    num_computed_ += count;
    if (costs() != nullptr) {
        costs()->observe(count, seconds_ - before);
    }
}

}  // namespace

DrafterPriors state_head_priors() { return drawn_priors(); }

HeadInUse::HeadInUse(std::size_t n_embd, std::size_t n_vocab, std::shared_ptr<const StateHead> head)
    : n_embd_(n_embd), n_vocab_(n_vocab) {
    if (head != nullptr) {
        exchange(std::move(head));
    }
}

std::shared_ptr<const StateHead> HeadInUse::head() const {
    const std::lock_guard lock(mutex_);
    return head_;
}

void HeadInUse::exchange(std::shared_ptr<const StateHead> head) {
    const std::lock_guard lock(mutex_);
    if (head->n_embd() != n_embd_ || head->n_vocab() != n_vocab_) {
        throw std::invalid_argument("the head reads " + std::to_string(head->n_embd()) + " numbers and knows " +
                                    std::to_string(head->n_vocab()) + " tokens, and must read " +
                                    std::to_string(n_embd_) + " and know " + std::to_string(n_vocab_));
    }
    head_ = std::move(head);
}

std::shared_ptr<Drafter> make_state_head(std::shared_ptr<const HeadInUse> in_use) {
    return std::make_shared<StateHeadDrafter>(std::move(in_use));
}

}  // namespace specllama
