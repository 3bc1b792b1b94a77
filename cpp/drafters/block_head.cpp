// A head that drafts several tokens in one decode.
#include "drafters/block_head.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"
#include "llama/errors.hpp"
#include "math/tempering.hpp"

namespace specllama {

BlockHeadDrafter::BlockHeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window)
    : DrawingDrafter(Source::block_head),
      own_(std::move(sequence)),
      noise_(own_->decoder().noise_block().value()),
      most_(noise_.size - noise_.first),
      kept_(own_->decoder().n_features()) {
    const std::size_t room = own_->decoder().n_ctx() - noise_.size;
    window_ = window > 0 ? std::min(window, room) : room;
}

void BlockHeadDrafter::observe(const DecodedBatch & batch) {
    const auto & history = batch.history;
    const auto text_from = [&history](std::size_t place) {
        return std::vector<int32_t>(history.begin() + static_cast<std::ptrdiff_t>(std::min(place, history.size())),
                                    history.end());
    };
    kept_.forget(batch.unchanged);
    std::size_t held = std::min(num_held(), batch.unchanged - std::min(batch.unchanged, begin_));
    if (batch.states != nullptr) {
        kept_.append(batch.first, batch.states, batch.count);
    }
    size_ = history.size();
    num_said_ = 0;
    text_ = text_from(begin_);
    held = std::min({held, num_common(text_, own_->tokens()), text_.empty() ? 0 : text_.size() - 1});
    own_->keep(held);
    if (num_held() == 0 || kept_.first() > begin_ + num_held()) {
        restart(kept_.first());
    }
    if (size_ > begin_ + 1 + window_) {
        restart(std::max({begin_, kept_.first(), size_ - 1 - std::max<std::size_t>(1, window_ / 2)}));
    }
    text_ = text_from(begin_);
}

void BlockHeadDrafter::restart(std::size_t begin) {
    begin_ = begin;
    own_->keep(0);
}

std::size_t BlockHeadDrafter::room() const {
    return kept_.end() + 1 < size_ || text_.empty() ? 0 : own_->decoder().n_ctx();
}

std::size_t BlockHeadDrafter::missing() const { return text_.size() - std::min(text_.size(), num_held()); }

std::size_t BlockHeadDrafter::catch_up() {
    const std::size_t ready =
        std::min(text_.empty() ? 0 : text_.size() - 1, kept_.end() - std::min(kept_.end(), begin_));
    const std::size_t left = ready - std::min(ready, num_held());
    const std::size_t count = std::min(left, decoding_->chunk(own_->decoder()));
    if (count > 0) {
        inject(count);
    }
    return left - count;
}

void BlockHeadDrafter::probe() {
    for (int i = 0; i < 2 && !text_.empty(); ++i) {
        decode_block(0, most_);
    }
    num_said_ = 0;
}

std::optional<DraftToken> BlockHeadDrafter::draw(const DraftRequest & request, std::size_t before,
                                                 const Proposal & proposal) {
    assert(size_ == request.history.size());
    const std::size_t place = proposal.tokens.size();
    if (num_said_ == 0 || place < num_drawn_) {  // a new round, perhaps after one that failed
        while (missing() - 1 + noise_.size > n_batch()) {
            inject(std::min(missing() - 1, n_batch()));
        }
        decode_block(missing() - 1, request.paced || noise_.is_whole ? most_ : std::min(most_, request.gamma));
    }
    if (place >= num_said_) {
        return std::nullopt;
    }
    num_drawn_ = place + 1;
    const std::size_t n = std::min(request.target.n_vocab(), own_->decoder().n_vocab());
    float * logits = logits_at(place, proposal.tokens, n);
    if (logits == nullptr) {
        return std::nullopt;
    }
    return drawn_if_allowed(request, proposal, source(), before, logits, n, nullptr);
}

// The logits of a place. Null: they depend on the token of the place before, which is not among its candidates.
float * BlockHeadDrafter::logits_at(std::size_t place, const std::vector<int32_t> & drafted, std::size_t n) {
    const std::size_t k = noise_.num_candidates;
    if (k == 0) {
        return own_->logits(row_ + place);
    }
    const std::size_t size = own_->decoder().state_size();
    const float * row = said_.data() + place * size;
    std::size_t from = 0;
    if (place > 0) {
        const float * ids = row - size;
        const auto is_last = [last = static_cast<float>(drafted[place - 1])](float id) { return id == last; };
        from = static_cast<std::size_t>(std::find_if(ids, ids + k, is_last) - ids);
        if (from == k) {
            return nullptr;
        }
    }
    scores_.assign(n, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < k; ++i) {
        if (row[i] >= 0.0F && row[i] < static_cast<float>(n)) {
            scores_[static_cast<std::size_t>(row[i])] = row[k + from * k + i];
        }
    }
    return scores_.data();
}

// Puts the next tokens of the text into the memory.
void BlockHeadDrafter::inject(std::size_t count) {
    Sequence::Addition addition{{text_.data() + num_held(), count, count}, own_.get()};
    addition.features = kept_.at(begin_ + num_held());
    addition.num_injected = count;
    decode(addition);
}

// Puts the next tokens of the text into the memory, and decodes a block after them.
void BlockHeadDrafter::decode_block(std::size_t num_injected, std::size_t drafts) {
    const std::size_t held = num_held();
    const auto from = text_.begin() + static_cast<std::ptrdiff_t>(held);
    tokens_.assign(from, from + static_cast<std::ptrdiff_t>(num_injected));
    tokens_.push_back(text_.back());
    tokens_.resize(num_injected + noise_.first + drafts, noise_.mask);
    row_ = num_injected + noise_.first;
    Sequence::Addition addition{{tokens_.data(), tokens_.size(), row_}, own_.get()};
    addition.features = num_injected > 0 ? kept_.at(begin_ + held) : nullptr;
    addition.num_injected = num_injected;
    addition.keeps_states = noise_.num_candidates > 0;
    num_said_ = num_drawn_ = 0;
    decode(addition);
    own_->keep(held + num_injected);  // the rest is noise, and must not be taken for text
    said_.clear();
    if (addition.keeps_states) {
        own_->copy_states(row_, drafts, said_);
    }
    num_said_ = drafts;
}

void BlockHeadDrafter::decode(const Sequence::Addition & addition) {
    const double before = own_->decode_seconds();
    decoding_->decode(addition);
    // A token of the text costs less than a token of a block. So small decodes without a block are not used as costs.
    const bool has_block = addition.count > addition.num_injected;
    const bool says_something = has_block || addition.count > 4 * noise_.size;
    if (costs_ != nullptr && own_->decoder().was_warm() && says_something) {
        costs_->observe(addition.count - (has_block ? noise_.first : 0), own_->decode_seconds() - before);
    }
}

DrafterPriors block_head_priors() { return drawn_priors(); }

std::unique_ptr<Drafter> make_block_head(const DrafterParts & parts) {
    if (!parts.head || !parts.head->decoder().noise_block()) {
        throw std::invalid_argument("the drafter 'block_head' needs a head that has a block");
    }
    const Decoder & decoder = parts.head->decoder();
    const NoiseBlock & block = *decoder.noise_block();
    if (decoder.n_ctx() <= block.size || decoder.n_batch() < block.size) {
        throw std::invalid_argument(
            "the head reads blocks of " + std::to_string(block.size) +
            " tokens: set n_ctx in draft_kwargs to more than that, and n_batch to at least that");
    }
    return std::make_unique<BlockHeadDrafter>(parts.head, parts.window);
}

}  // namespace specllama
