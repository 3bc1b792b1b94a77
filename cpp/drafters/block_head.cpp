// A head that drafts several tokens in one decode.
#include "drafters/block_head.hpp"

#include <algorithm>
#include <cassert>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"

namespace specllama {

namespace {

std::size_t room_for_text(const Decoder & decoder) {
    const NoiseBlock & block = decoder.noise_block().value();
    if (decoder.n_ctx() <= block.size || decoder.n_batch() < block.size) {
        throw std::invalid_argument(
            "the head reads blocks of " + std::to_string(block.size) +
            " tokens: set n_ctx in draft_kwargs to more than that, and n_batch to at least that");
    }
    return decoder.n_ctx() - block.size;
}

}  // namespace

BlockHeadDrafter::BlockHeadDrafter(const std::shared_ptr<Sequence> & sequence, std::size_t window)
    : ReadingHead(Source::block_head, sequence, window, room_for_text(sequence->decoder()), 0),
      noise_(sequence->decoder().noise_block().value()),
      most_(noise_.size - noise_.first) {}

void BlockHeadDrafter::observe(const DecodedBatch & batch) {
    ReadingHead::observe(batch);
    num_said_ = 0;
}

void BlockHeadDrafter::probe() {
    for (int i = 0; i < 2 && !text().empty(); ++i) {
        decode_block(0, most_);
    }
    num_said_ = 0;
}

std::optional<DraftToken> BlockHeadDrafter::draw(const DraftRequest & request, std::size_t before,
                                                 const Proposal & proposal) {
    assert(size() == request.history.size());
    const std::size_t place = proposal.tokens.size();
    if (num_said_ == 0 || place < num_drawn_) {  // a new round, perhaps after one that failed
        while (missing() - 1 + noise_.size > n_batch()) {
            read(std::min(missing() - 1, n_batch()));
        }
        decode_block(missing() - 1, request.paced || noise_.is_whole ? most_ : std::min(most_, request.gamma));
    }
    if (place >= num_said_) {
        return std::nullopt;
    }
    num_drawn_ = place + 1;
    const std::size_t n = std::min(request.target.n_vocab(), sequence().decoder().n_vocab());
    float * logits = logits_at(place, proposal.tokens, n);
    if (logits == nullptr) {
        return std::nullopt;
    }
    return drawn_if_allowed(request, proposal, source(), before, logits, n, nullptr);
}

// The logits of a place. Null: they depend on the token drafted at the place before, which is not among the candidates
// of that place.
float * BlockHeadDrafter::logits_at(std::size_t place, const std::vector<int32_t> & drafted, std::size_t n) {
    const std::size_t k = noise_.num_candidates;
    if (k == 0) {
        return sequence().logits(row_ + place);
    }
    const std::size_t size = sequence().decoder().state_size();
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

void BlockHeadDrafter::read(std::size_t count) {
    const std::size_t held = num_held();
    Sequence::Addition addition{{text().data() + held, count, count}, &sequence()};
    addition.features = states_at(held);
    addition.num_injected = count;
    decode_some(addition);
}

// Puts the next `num_injected` tokens of the text into the memory, and decodes a block with `drafts` places after them.
void BlockHeadDrafter::decode_block(std::size_t num_injected, std::size_t drafts) {
    const std::size_t held = num_held();
    const auto from = text().begin() + static_cast<std::ptrdiff_t>(held);
    tokens_.assign(from, from + static_cast<std::ptrdiff_t>(num_injected));
    tokens_.push_back(text().back());
    tokens_.resize(num_injected + noise_.first + drafts, noise_.mask);
    row_ = num_injected + noise_.first;
    Sequence::Addition addition{{tokens_.data(), tokens_.size(), row_}, &sequence()};
    addition.features = num_injected > 0 ? states_at(held) : nullptr;
    addition.num_injected = num_injected;
    addition.keeps_states = noise_.num_candidates > 0;
    num_said_ = num_drawn_ = 0;
    decode_some(addition);
    sequence().keep(held + num_injected);  // the block is noise, and must not be taken for text
    said_.clear();
    if (addition.keeps_states) {
        sequence().copy_states(row_, drafts, said_);
    }
    num_said_ = drafts;
}

void BlockHeadDrafter::decode_some(const Sequence::Addition & addition) {
    const double seconds = decode(addition);
    // A token of the text costs less than a token of a block. So the time of a small decode without a block is not
    // reported as a cost.
    const bool has_block = addition.count > addition.num_injected;
    if (has_block || addition.count > 4 * noise_.size) {
        report(addition.count - (has_block ? noise_.first : 0), seconds);
    }
}

DrafterPriors block_head_priors() { return drawn_priors(); }

}  // namespace specllama
