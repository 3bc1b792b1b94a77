// One MUL_MAT of a cache with the queries (or the weights) of its heads, shared out to ggml's threads: what
// attention consists of without flash attention. A mixture's choice of experts is another such product, of few rows of
// floats. It must not depend on the batch, or another expert might be chosen.
#pragma once

#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

class CacheProduct {
public:
    // op: one that `fits`.
    CacheProduct(const kernels::FloatKernels & kernels, const ggml::Tensor * op);

    // Whether its first source is a view of rows of floats of whole lanes: weights are no view. A router's are taken
    // by their name.
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
