// A head that reads the target's memory.
#include "drafters/assistant.hpp"

#include <algorithm>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

AssistantDrafter::AssistantDrafter(std::shared_ptr<Sequence> sequence)
    : LastStateHead(Source::assistant, sequence->decoder().n_features()), sequence_(std::move(sequence)) {}

void AssistantDrafter::observe(const DecodedBatch & batch) {
    LastStateHead::observe(batch);
    num_read_ = 0;
}

std::optional<DraftToken> AssistantDrafter::draw(const DraftRequest & request, std::size_t before,
                                                 const Proposal & proposal) {
    if (!is_ready()) {
        return std::nullopt;
    }
    if (num_read_ == 0) {
        decode(request.history.back(), state());
    }
    while (num_read_ <= proposal.tokens.size()) {
        const std::vector<float> state = own_state_;
        decode(proposal.tokens[num_read_ - 1], state.data());
    }
    const std::size_t n = std::min(request.target.n_vocab(), sequence_->decoder().n_vocab());
    return drawn_if_allowed(request, proposal, source(), before, sequence_->logits(0), n, nullptr);
}

void AssistantDrafter::decode(std::int32_t token, const float * state) {
    Sequence::Addition addition{{&token, 1, 0}, sequence_.get()};
    addition.states = state;
    addition.keeps_states = true;
    const double before = sequence_->decode_seconds();
    decoding_->decode(addition);
    if (costs() != nullptr && sequence_->decoder().was_warm()) {
        costs()->observe(1, sequence_->decode_seconds() - before);
    }
    own_state_.clear();
    sequence_->copy_states(0, 1, own_state_);
    ++num_read_;
}

DrafterPriors assistant_priors() { return drawn_priors(); }

}  // namespace specllama
