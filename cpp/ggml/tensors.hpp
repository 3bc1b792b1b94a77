// Finds the rows of a tensor.
#pragma once

#include <cstdint>

#include "ggml/ggml_layout.hpp"

namespace specllama {

inline uint8_t * at(const ggml::Tensor * tensor, int64_t first, int64_t second, int64_t third) {
    return static_cast<uint8_t *>(tensor->data) + static_cast<std::size_t>(first) * tensor->nb[1] +
           static_cast<std::size_t>(second) * tensor->nb[2] + static_cast<std::size_t>(third) * tensor->nb[3];
}

// Whether the tensor has this type (float16, or one of 4 bytes), and the numbers of a row stand side by side.
inline bool is_rows(const ggml::Tensor * tensor, int type) {
    return tensor != nullptr && tensor->type == type && tensor->nb[0] == (type == ggml::kHalf ? 2 : 4);
}

// Whether the numbers of the tensor stand side by side.
inline bool is_whole(const ggml::Tensor * tensor) {
    return tensor->nb[1] == tensor->nb[0] * static_cast<std::size_t>(tensor->ne[0]) &&
           tensor->nb[2] == tensor->nb[1] * static_cast<std::size_t>(tensor->ne[1]) &&
           tensor->nb[3] == tensor->nb[2] * static_cast<std::size_t>(tensor->ne[2]);
}

inline int64_t count_of(const ggml::Tensor * tensor) {
    return tensor->ne[0] * tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

}  // namespace specllama
