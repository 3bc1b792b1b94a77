// DRY ("don't repeat yourself"): the longer the repetition that a token would continue, the less likely the token
// becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "math/sampler_params.hpp"

namespace specllama {

// Returns the penalties after the prompt and `recent` [n_recent], as {token, number to subtract from the token's
// logit}. The arithmetic is that of llama.cpp's llama_sampler_dry (by p-e-w and pi6am). The result depends on the text
// only, and takes time linear in the text's length.
std::vector<std::pair<int32_t, float>> dry_penalties(const SamplerParams & params, const int32_t * recent,
                                                     std::size_t n_recent);

}  // namespace specllama
