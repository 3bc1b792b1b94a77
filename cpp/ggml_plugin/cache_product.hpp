// One MUL_MAT of a cache with the queries (or the attention weights) of its heads, divided among ggml's threads.
// Without flash attention, attention consists of such products. The router of a mixture of experts is a product of few
// rows of floats, and is computed here, too: if its result depended on the other tokens of the batch, another expert
// might be chosen.
#pragma once

#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

class CacheProduct {
public:
    // op: an operation for which fits() is true.
    CacheProduct(const kernels::FloatKernels & kernels, const ggml::Tensor * op);

    // Whether the first source of the operation is a view of a cache: rows of numbers that fill whole lanes. Weights
    // are no view, but the weights of a router are accepted because of their name.
    static bool fits(const ggml::Tensor * op);

    void compute(const ggml::ComputeParams & params) const;

private:
    void multiply(int64_t head, int64_t stream, int64_t first_row, int64_t last_row) const;

    const kernels::FloatKernels & kernels_;
    const ggml::Tensor * op_;
    const ggml::Tensor * cache_;
    const ggml::Tensor * columns_;
};

}  // namespace specllama
