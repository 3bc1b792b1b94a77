// The type of a tensor's numbers, for caches that our attention can read.
#pragma once

#include <optional>
#include <utility>

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
    constexpr std::pair<int, kernels::CacheType> kQuantized[] = {{ggml::kQ8, kernels::CacheType::q8},
                                                                 {ggml::kQ4, kernels::CacheType::q4},
                                                                 {ggml::kIq4, kernels::CacheType::iq4}};
    for (const auto & [number, type] : kQuantized) {
        if (tensor != nullptr && tensor->type == number &&
            tensor->nb[0] == static_cast<std::size_t>(kernels::block_bytes(type)) &&
            tensor->ne[0] % kernels::kBlockValues == 0) {
            return type;
        }
    }
    return std::nullopt;
}

}  // namespace specllama
