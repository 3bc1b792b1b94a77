// DRY ("don't repeat yourself"): the longer the repetition that a token would go on with, the less likely it becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sequence_breakers.hpp"

namespace specllama {

// Names, defaults and meanings are those of llama-server.
struct DryParams {
    float multiplier = 0.0F;  // 0: off
    float base = 1.75F;
    int allowed_length = 2;                            // tokens that may be repeated freely
    int penalty_last_n = -1;                           // how many tokens it sees; 0: off, -1: all
    std::shared_ptr<const SequenceBreakers> breakers;  // null: none
    std::vector<int32_t> prompt;                       // what it sees before the tokens that were generated

    bool on() const { return multiplier != 0.0F && penalty_last_n != 0; }
};

// What to subtract from the logits of tokens behind the prompt and `recent` [n_recent]: the arithmetic of llama.cpp's
// llama_sampler_dry (by p-e-w and pi6am). A pure function of the text, in O(its length).
std::vector<std::pair<int32_t, float>> dry_penalties(const DryParams & params, const int32_t * recent,
                                                     std::size_t n_recent);

}  // namespace specllama
