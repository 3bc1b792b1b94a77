// Spreads the logits of a head that has only a part of the target's tokens (d2t). llama.cpp makes a row with a place
// for each of the target's tokens, fills it with minus infinity (FILL), and copies the head's logits to their places
// (SET_ROWS). ggml executes FILL and SET_ROWS one number at a time, which is slow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ggml/ggml_layout.hpp"
#include "ggml/tensors.hpp"

namespace specllama {

// Whether the tensor has the shape [1, n, columns], and all its numbers stand side by side.
inline bool is_columns(const ggml::Tensor * tensor) {
    return is_rows(tensor, ggml::kFloat) && tensor->ne[0] == 1 && tensor->nb[1] == sizeof(float) &&
           tensor->nb[2] == static_cast<std::size_t>(tensor->ne[1]) * sizeof(float) && tensor->ne[3] == 1;
}

inline float * logits_of(const ggml::Tensor * tensor, int64_t index) {
    return reinterpret_cast<float *>(at(tensor, 0, index, 0));
}

// Whether the operation fills columns of floats with one number in each row.
inline bool is_fill_of_logits(const ggml::Tensor * op) { return is_columns(op) && op->ne[1] > 1; }

// Whether the operation spreads columns of floats over longer columns.
inline bool is_spread_of_logits(const ggml::Tensor * op) {
    const ggml::Tensor * places = op->src[1];
    return is_columns(op) && op->src[0] != nullptr && is_columns(op->src[0]) && op->src[0]->ne[2] == op->ne[2] &&
           places != nullptr && places->type == ggml::kInt64 && places->nb[0] == sizeof(int64_t) &&
           places->ne[0] == op->src[0]->ne[1] && places->ne[1] == 1 && places->ne[2] == 1;
}

inline void fill_logits(const ggml::Tensor * op) {
    float value = 0.0F;
    std::memcpy(&value, op->op_params, sizeof value);
    std::fill_n(logits_of(op, 0), op->ne[1] * op->ne[2], value);
}

// Spreads the logits. A logit whose place does not exist is left out.
inline void spread_logits(const ggml::Tensor * op) {
    const auto * places = static_cast<const int64_t *>(op->src[1]->data);
    for (int64_t c = 0; c < op->ne[2]; ++c) {
        const float * from = logits_of(op->src[0], c);
        float * to = logits_of(op, c);
        for (int64_t i = 0; i < op->src[0]->ne[1]; ++i) {
            if (places[i] >= 0 && places[i] < op->ne[1]) {
                to[places[i]] = from[i];
            }
        }
    }
}

}  // namespace specllama
