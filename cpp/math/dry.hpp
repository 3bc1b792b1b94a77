// DRY ("don't repeat yourself"): the longer the repetition that a token would go on with, the less likely it becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "math/sampler_params.hpp"

namespace specllama {

// What to subtract from the logits of tokens after the prompt and `recent` [n_recent]: the arithmetic of llama.cpp's
// llama_sampler_dry (by p-e-w and pi6am). A pure function of the text, in O(its length).
std::vector<std::pair<int32_t, float>> dry_penalties(const SamplerParams & params, const int32_t * recent,
                                                     std::size_t n_recent);

}  // namespace specllama
