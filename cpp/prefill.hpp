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

// Decodes up to n_batch of them, without logits; returns how many are left. The cache must hold a prefix of history.
// What another text has of it is not decoded again, and what it is about to decode is waited for.
inline std::size_t prefill_chunk(Sequence & sequence, const std::vector<int32_t> & history) {
    Scheduler * scheduler = sequence.decoder().scheduler();
    if (scheduler != nullptr && !scheduler->share_prompt(sequence, history)) {
        return tokens_to_prefill(sequence, history);
    }
    const std::size_t left = tokens_to_prefill(sequence, history);
    const std::size_t count = std::min(left, prompt_chunk(sequence.decoder()));
    if (count > 0) {
        sequence.decode(history.data() + sequence.tokens().size(), count, count);
    }
    return left - count;
}

}  // namespace specllama
