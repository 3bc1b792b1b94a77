// The type of a tensor's numbers, for caches that our attention can read.
#pragma once

#include <optional>

#include "ggml/tensors.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

// Returns the type; nothing if our attention cannot read it, or if the numbers of a row do not stand side by side.
inline std::optional<kernels::CacheType> cache_type_of(const ggml::Tensor * tensor) {
    if (is_rows(tensor, ggml::kHalf)) {
        return kernels::CacheType::half;
    }
    if (is_rows(tensor, ggml::kFloat)) {
        return kernels::CacheType::single;
    }
    if (tensor != nullptr && tensor->type == ggml::kQ8 && tensor->nb[0] == kernels::kQ8Bytes &&
        tensor->ne[0] % kernels::kQ8Values == 0) {
        return kernels::CacheType::q8;
    }
    return std::nullopt;
}

}  // namespace specllama
