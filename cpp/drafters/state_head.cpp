// Drafts with a head that reads only the target's final state (heads/state_head.hpp).
#include "drafters/state_head.hpp"

#include <algorithm>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/kept_states.hpp"
#include "drafters/table.hpp"
#include "llama/clock.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

namespace {

// The drafter has no memory: it needs only the target's state of the text's last token but one. Medusa and blockwise
// heads compute all places at once, before a token is drawn. Hydra computes place by place, from the tokens drafted so
// far. Either way each token has its q.
class StateHeadDrafter final : public DrawingDrafter {
public:
    explicit StateHeadDrafter(std::shared_ptr<const StateHead> head)
        : DrawingDrafter(Source::state_head), head_(std::move(head)), kept_(head_->n_embd()) {}

    void observe(const DecodedBatch & batch) override {
        kept_.forget(batch.unchanged);
        if (batch.states != nullptr) {
            kept_.append(batch.first, batch.states, batch.count);
        }
        size_ = batch.history.size();
        num_said_ = 0;
    }
    std::size_t state_size() const override { return head_->n_embd(); }

    // Draws nothing after the head's last place.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // 0 while the target's state of the text's last token but one is missing.
    std::size_t room() const override { return is_ready() ? static_cast<std::size_t>(-1) : 0; }
    std::size_t missing() const override { return 1; }
    std::size_t n_batch() const override { return head_->size(); }
    std::size_t block() const override { return head_->reads_tokens() ? 1 : head_->size(); }
    std::size_t catch_up() override { return 0; }
    void probe() override {}
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return seconds_; }
    std::size_t num_decoded() const override { return num_computed_; }

private:
    bool is_ready() const { return size_ > 1 && kept_.first() + 2 <= size_ && kept_.end() + 1 >= size_; }
    void compute(const std::vector<std::int32_t> & tokens, std::size_t first, std::size_t count);

    std::shared_ptr<const StateHead> head_;
    KeptStates kept_;
    std::size_t size_ = 0;  // length of the text
    CostModel * costs_ = nullptr;
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
        head_->say(kept_.at(size_ - 2), tokens.data(), first, count, said_);
    }
    first_said_ = first;
    num_said_ = count;
    num_computed_ += count;
    if (costs_ != nullptr) {
        costs_->observe(count, seconds_ - before);
    }
}

}  // namespace

DrafterPriors state_head_priors() { return drawn_priors(); }

std::shared_ptr<Drafter> make_state_head(std::shared_ptr<const StateHead> head) {
    return std::make_shared<StateHeadDrafter>(std::move(head));
}

}  // namespace specllama
