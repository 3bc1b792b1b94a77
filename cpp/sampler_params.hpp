// The parameters of the sampler chain, checked once.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dry.hpp"

namespace specllama {

// Names, defaults and meanings are those of llama_cpp.Llama._init_sampler; from top_n_sigma on those of llama-server.
struct SamplerParams {
    float temperature = 0.8F;  // 0: greedy; below 0: no truncation and no temperature
    int top_k = 40;            // <= 0: off
    float top_p = 0.95F;       // >= 1: off
    float min_p = 0.05F;       // <= 0: off
    float typical_p = 1.0F;    // >= 1: off
    float repeat_penalty = 1.0F;
    float frequency_penalty = 0.0F;
    float presence_penalty = 0.0F;
    int penalty_last_n = 64;                            // how many generated tokens the penalties see; <= 0: off
    std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logit; -inf bans the token
    float top_n_sigma = -1.0F;                          // <= 0: off
    float xtc_probability = 0.0F;                       // 0: off
    float xtc_threshold = 0.1F;                         // > 0.5: off
    float dynatemp_range = 0.0F;                        // <= 0: off
    float dynatemp_exponent = 1.0F;
    DryParams dry;

    // Throws std::invalid_argument that names the parameter, its value and what is allowed.
    void validate() const;

    bool truncates() const { return top_n_sigma > 0.0F || top_k > 0 || looks_at_probabilities(); }
    bool looks_at_probabilities() const { return typical_p < 1.0F || top_p < 1.0F || min_p > 0.0F; }
    bool has_xtc() const { return xtc_probability > 0.0F && xtc_threshold <= 0.5F; }

    bool has_penalties() const {
        return penalty_last_n > 0 && (repeat_penalty != 1.0F || frequency_penalty != 0.0F || presence_penalty != 0.0F);
    }
};

}  // namespace specllama
