// A drafter that draws tokens from a head: a layer that reads the target's hidden states.
#include "drafters/head.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"

namespace specllama {

HeadDrafter::HeadDrafter(const std::shared_ptr<Sequence> & sequence, std::size_t window)
    : ReadingHead(Source::head, sequence, window, sequence->decoder().n_ctx(), 1) {}

void HeadDrafter::observe(const DecodedBatch & batch) {
    ReadingHead::observe(batch);
    num_true_ = num_held();
}

// The last drafted token is never decoded, so n drafted tokens need n - 1 cells.
std::size_t HeadDrafter::room() const {
    const std::size_t n_ctx = sequence().decoder().n_ctx();
    const std::size_t in_memory = n_ctx + 1 - std::min(n_ctx + 1, text().size());
    const std::size_t most = has_several() ? std::min(in_memory, sequence().decoder().num_layers()) : in_memory;
    return is_ready() ? most : 0;
}

void HeadDrafter::probe() {
    for (int i = 0; i < 2 && num_ready() > num_held() && missing() > 1; ++i) {
        decode_text(1, false);
    }
}

std::optional<DraftToken> HeadDrafter::draw(const DraftRequest & request, std::size_t before,
                                            const Proposal & proposal) {
    assert(size() == request.history.size());
    if (has_several() && proposal.tokens.size() >= sequence().decoder().num_layers()) {
        return std::nullopt;
    }
    decode_rest_of_text();
    while (num_held() < text().size() + proposal.tokens.size()) {
        if (has_several()) {
            decode_by_layer(num_held() + 1 - text().size(), proposal.tokens);
        } else {
            decode_drafted(proposal.tokens[num_held() - text().size()]);
        }
    }
    const std::size_t n = std::min(request.target.n_vocab(), sequence().decoder().n_vocab());
    return drawn_if_allowed(request, proposal, source(), before, sequence().logits(row_), n, nullptr);
}

// With several layers, decode_by_layer() decodes the text's last token, in each layer when the layer has its turn.
void HeadDrafter::decode_rest_of_text() {
    const std::size_t left = has_several() ? 1 : 0;
    while (missing() > n_batch()) {
        decode_text(n_batch(), false);
    }
    if (missing() > left) {
        decode_text(missing() - left, !has_several());
    }
}

// Decodes the next tokens of the text with the target's states.
void HeadDrafter::decode_text(std::size_t count, bool draws) {
    const std::size_t held = num_held();
    Sequence::Addition addition{{text().data() + held, count, draws ? count - 1 : count}, &sequence()};
    addition.features = states_at(held);
    addition.keeps_states = draws;
    addition.layer = has_several() ? all_layers : 0;
    decode_one(addition);
    num_true_ = held + count;
}

// Decodes a token of the proposal with the head's own state of the token before it.
void HeadDrafter::decode_drafted(int32_t token) {
    const std::vector<float> state = std::move(last_state_);
    Sequence::Addition addition{{&token, 1, 0}, &sequence()};
    addition.states = state.data();
    addition.keeps_states = true;
    decode_one(addition);
}

// Decodes the text's last token and the first `layer` drafted tokens in an MTP layer. Earlier layers have decoded them,
// too, but each layer needs keys and values of its own.
void HeadDrafter::decode_by_layer(std::size_t layer, const std::vector<int32_t> & drafted) {
    const std::size_t last = text().size() - 1;
    std::vector<int32_t> tokens{text()[last]};
    tokens.insert(tokens.end(), drafted.begin(), drafted.begin() + static_cast<std::ptrdiff_t>(layer));
    if (layer == 0) {
        const float * state = states_at(last);
        chain_.assign(state, state + sequence().decoder().n_features());
    }
    sequence().keep(last);
    decode_rest_of_text();  // another text may have taken cells that the window had left: then keep() keeps nothing
    Sequence::Addition addition{{tokens.data(), tokens.size(), layer}, &sequence()};
    addition.states = chain_.data();
    addition.keeps_states = true;
    addition.layer = static_cast<int32_t>(layer);
    decode_one(addition);
    chain_.insert(chain_.end(), last_state_.begin(), last_state_.end());
}

void HeadDrafter::decode_one(const Sequence::Addition & addition) {
    const double seconds = decode(addition);
    const std::size_t num_layers = addition.layer == all_layers ? sequence().decoder().num_layers() : 1;
    report(addition.count, seconds / static_cast<double>(num_layers));
    row_ = addition.count - 1;
    last_state_.clear();
    if (addition.keeps_states) {
        sequence().copy_states(row_, 1, last_state_);
    }
}

DrafterPriors head_priors() { return drawn_priors(); }

}  // namespace specllama
