// What the numbers of a tensor are, if our attention reads such a cache.
#pragma once

#include <optional>

#include "ggml/tensors.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

// Nothing where it is of another type, or its rows are not of one piece.
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
