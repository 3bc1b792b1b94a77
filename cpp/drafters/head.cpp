// A drafter that draws tokens from a head: a layer that reads the target's hidden states.
#include "drafters/head.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"
#include "llama/errors.hpp"
#include "math/tempering.hpp"

namespace specllama {

HeadDrafter::HeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window)
    : DrawingDrafter(Source::head), own_(std::move(sequence)), kept_(own_->decoder().n_features()) {
    const std::size_t n_ctx = own_->decoder().n_ctx();
    window_ = window > 0 ? std::min(window, n_ctx) : n_ctx;
}

void HeadDrafter::begin(const Task & task) { decoding_ = &task.decoding; }

void HeadDrafter::observe(const DecodedBatch & batch) {
    const auto & history = batch.history;
    forget(batch.unchanged);
    if (batch.states != nullptr) {
        kept_.append(batch.first, batch.states, batch.count);
    }
    size_ = history.size();
    const auto text_behind = [&history](std::size_t place) {
        return std::vector<int32_t>(history.begin() + static_cast<std::ptrdiff_t>(std::min(place + 1, history.size())),
                                    history.end());
    };
    tokens_ = text_behind(begin_);
    // The last token is decoded when a draft begins, because its logits are needed then.
    num_true_ = std::min(num_true_, num_common(tokens_, own_->tokens()));
    num_true_ = std::min(num_true_, tokens_.empty() ? 0 : tokens_.size() - 1);
    if (num_true_ == 0 || kept_.first() > begin_ + num_true_) {
        restart(kept_.first());
    }
    if (size_ > begin_ + 1 + window_) {
        restart(std::max({begin_, kept_.first(), size_ - 1 - std::max<std::size_t>(1, window_ / 2)}));
    }
    tokens_ = text_behind(begin_);
    own_->keep(num_true_);
}

void HeadDrafter::restart(std::size_t begin) {
    begin_ = begin;
    num_true_ = 0;
}

// The text changes after `unchanged` tokens. An entry of the memory also depends on the token before it.
void HeadDrafter::forget(std::size_t unchanged) {
    kept_.forget(unchanged);
    num_true_ = std::min({num_true_, own_->tokens().size(), unchanged - std::min(unchanged, begin_ + 1)});
}

void HeadDrafter::finish(const std::vector<int32_t> &) {
    if (!own_->decoder().is_open()) {
        return;
    }
    try {
        const Decoder::Use in_use(own_->decoder());
        own_->keep(num_true_);
    } catch (const BusyError &) {  // NOLINT(bugprone-empty-catch)
        // Another target uses the head by now, and has set what its memory holds.
    }
}

// The last drafted token is never decoded, so n drafted tokens need n - 1 cells.
std::size_t HeadDrafter::room() const {
    const std::size_t n_ctx = own_->decoder().n_ctx();
    const std::size_t in_memory = n_ctx + 1 - std::min(n_ctx + 1, tokens_.size());
    const std::size_t most = has_several() ? std::min(in_memory, own_->decoder().num_layers()) : in_memory;
    return kept_.end() + 1 < size_ || tokens_.empty() ? 0 : most;
}

std::size_t HeadDrafter::catch_up() {
    const std::size_t held = own_->tokens().size();
    const std::size_t ready =
        std::min(tokens_.empty() ? 0 : tokens_.size() - 1, kept_.end() - std::min(kept_.end(), begin_));
    const std::size_t left = ready - std::min(ready, held);
    const std::size_t count = std::min(left, decoding_->chunk(own_->decoder()));
    if (count > 0) {
        decode_text(count, false);
    }
    return left - count;
}

void HeadDrafter::probe() {
    for (int i = 0; i < 2 && kept_.end() > begin_ + own_->tokens().size() && missing() > 1; ++i) {
        decode_text(1, false);
    }
}

std::optional<DraftToken> HeadDrafter::draw(const DraftRequest & request, std::size_t before,
                                            const Proposal & proposal) {
    assert(size_ == request.history.size());
    if (has_several() && proposal.tokens.size() >= own_->decoder().num_layers()) {
        return std::nullopt;
    }
    // With several layers, the first layer decodes the text's last token, and the others follow in turn.
    const std::size_t left = has_several() ? 1 : 0;
    while (missing() > n_batch()) {
        decode_text(n_batch(), false);
    }
    if (missing() > left) {
        decode_text(missing() - left, !has_several());
    }
    while (own_->tokens().size() < num_tokens() + proposal.tokens.size()) {
        if (has_several()) {
            decode_by_layer(own_->tokens().size() + 1 - num_tokens(), proposal.tokens);
        } else {
            decode_drafted(proposal.tokens[own_->tokens().size() - num_tokens()]);
        }
    }
    const std::size_t n = std::min(request.target.n_vocab(), own_->decoder().n_vocab());
    float * logits = own_->logits(row_);
    return drawn_if_allowed(request, proposal, source(), before, logits, n, nullptr);
}

// Decodes the next tokens of the text with the target's states.
void HeadDrafter::decode_text(std::size_t count, bool draws) {
    const std::size_t held = own_->tokens().size();
    Sequence::Addition addition{{tokens_.data() + held, count, draws ? count - 1 : count}, own_.get()};
    addition.features = kept_.at(begin_ + held);
    addition.keeps_states = draws;
    addition.layer = has_several() ? all_layers : 0;
    decode(addition);
    num_true_ = held + count;
}

// Decodes a token of the proposal with the head's own state of the token before it.
void HeadDrafter::decode_drafted(int32_t token) {
    const std::vector<float> state = std::move(own_state_);
    Sequence::Addition addition{{&token, 1, 0}, own_.get()};
    addition.states = state.data();
    addition.keeps_states = true;
    decode(addition);
}

// Decodes the text's last token and the first `layer` drafted tokens, all again: earlier layers have keys and values of
// their own.
void HeadDrafter::decode_by_layer(std::size_t layer, const std::vector<int32_t> & drafted) {
    const std::size_t last = num_tokens() - 1;
    std::vector<int32_t> tokens{tokens_[last]};
    tokens.insert(tokens.end(), drafted.begin(), drafted.begin() + static_cast<std::ptrdiff_t>(layer));
    if (layer == 0) {
        const float * state = kept_.at(begin_ + last);
        chain_.assign(state, state + own_->decoder().n_features());
    }
    own_->keep(last);
    Sequence::Addition addition{{tokens.data(), tokens.size(), layer}, own_.get()};
    addition.states = chain_.data();
    addition.keeps_states = true;
    addition.layer = static_cast<int32_t>(layer);
    decode(addition);
    chain_.insert(chain_.end(), own_state_.begin(), own_state_.end());
}

void HeadDrafter::decode(const Sequence::Addition & addition) {
    const double before = own_->decode_seconds();
    decoding_->decode(addition);
    if (costs_ != nullptr && own_->decoder().was_warm()) {
        const std::size_t num_layers = addition.layer == all_layers ? own_->decoder().num_layers() : 1;
        costs_->observe(addition.count, (own_->decode_seconds() - before) / static_cast<double>(num_layers));
    }
    row_ = addition.count - 1;
    own_state_.clear();
    if (addition.keeps_states) {
        own_->copy_states(row_, 1, own_state_);
    }
}

DrafterPriors head_priors() { return drawn_priors(); }

std::unique_ptr<Drafter> make_head(const DrafterParts & parts) {
    if (!parts.head || !parts.head->decoder().is_head()) {
        throw std::invalid_argument("the drafter 'head' needs a head");
    }
    return std::make_unique<HeadDrafter>(parts.head, parts.window);
}

}  // namespace specllama
