// Prompt processing, one chunk at a time so that signals can be checked in between.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler.hpp"
#include "sequence.hpp"

namespace specllama {

// How many tokens of `history` the cache still lacks. The last one (pending) is not among them.
inline std::size_t tokens_to_prefill(const Sequence & sequence, const std::vector<int32_t> & history) {
    return history.size() - 1 - std::min(history.size() - 1, sequence.tokens().size());
}

// At most so many tokens of a prompt at once.
inline std::size_t prompt_chunk(const Decoder & decoder) {
    return decoder.scheduler() != nullptr ? decoder.scheduler()->chunk(decoder) : decoder.n_batch();
}

struct PromptPart {
    std::size_t left = 0;   // tokens of the prompt that the cache lacks
    std::size_t count = 0;  // of these, how many to decode next
};

// What to decode next of a prompt. The cache must hold a prefix of history. What another text has of it is taken over.
inline PromptPart next_prompt_part(Sequence & sequence, const std::vector<int32_t> & history) {
    if (sequence.decoder().scheduler() != nullptr) {
        sequence.decoder().scheduler()->share_prompt(sequence, history);
    }
    const std::size_t left = tokens_to_prefill(sequence, history);
    return {left, std::min(left, prompt_chunk(sequence.decoder()))};
}

// Decodes it, without logits; returns how many tokens are left.
inline std::size_t prefill_chunk(Sequence & sequence, const std::vector<int32_t> & history) {
    const PromptPart part = next_prompt_part(sequence, history);
    if (part.count > 0) {
        sequence.decode(history.data() + sequence.tokens().size(), part.count, part.count);
    }
    return part.left - part.count;
}

}  // namespace specllama
