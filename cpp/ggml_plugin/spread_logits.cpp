#include "ggml_plugin/spread_logits.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ggml_plugin/tensors.hpp"

namespace specllama {

namespace {

// [1, n, columns], all numbers side by side.
bool is_columns(const ggml::Tensor * tensor) {
    return is_rows(tensor, ggml::kFloat) && tensor->ne[0] == 1 && tensor->nb[1] == sizeof(float) &&
           tensor->nb[2] == static_cast<std::size_t>(tensor->ne[1]) * sizeof(float) && tensor->ne[3] == 1;
}

float * column(const ggml::Tensor * tensor, int64_t index) {
    return reinterpret_cast<float *>(at(tensor, 0, index, 0));
}

}  // namespace

bool is_fill_of_logits(const ggml::Tensor * op) { return is_columns(op) && op->ne[1] > 1; }

bool is_spread_of_logits(const ggml::Tensor * op) {
    const ggml::Tensor * places = op->src[1];
    return is_columns(op) && op->src[0] != nullptr && is_columns(op->src[0]) && op->src[0]->ne[2] == op->ne[2] &&
           places != nullptr && places->type == ggml::kInt64 && places->nb[0] == sizeof(int64_t) &&
           places->ne[0] == op->src[0]->ne[1] && places->ne[1] == 1 && places->ne[2] == 1;
}

void fill_logits(const ggml::Tensor * op) {
    float value = 0.0F;
    std::memcpy(&value, op->op_params, sizeof value);
    std::fill_n(column(op, 0), op->ne[1] * op->ne[2], value);
}

void spread_logits(const ggml::Tensor * op) {
    const auto * places = static_cast<const int64_t *>(op->src[1]->data);
    for (int64_t c = 0; c < op->ne[2]; ++c) {
        const float * from = column(op->src[0], c);
        float * to = column(op, c);
        for (int64_t i = 0; i < op->src[0]->ne[1]; ++i) {
            if (places[i] >= 0 && places[i] < op->ne[1]) {
                to[places[i]] = from[i];
            }
        }
    }
}

}  // namespace specllama
