// One FLASH_ATTN_EXT over a cache of floats, shared out to ggml's threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml_plugin/ggml_layout.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

class FlashAttention {
public:
    // op: one that `fits`.
    FlashAttention(const kernels::FloatKernels & kernels, const ggml::Tensor * op);

    // Whether it is of the usual kind: a mask for all heads, neither a cap nor a slope nor sinks, whole lanes.
    static bool fits(const ggml::Tensor * op);

    std::size_t work_bytes(int num_threads) const;

    // `wait` is called once if `splits(params.nth)`: until all threads are there.
    template <class Wait>
    void compute(const ggml::ComputeParams & params, Wait wait) const {
        if (splits(params.nth)) {
            attend_in_parts(params);
            wait();
            merge_parts(params);
        } else {
            attend_to_units(params);
        }
    }

private:
    // A unit is up to kMostQueries queries of one head of the cache. Few units are shared out by parts of the cache.
    bool splits(int num_threads) const;
    void attend_in_parts(const ggml::ComputeParams & params) const;
    void merge_parts(const ggml::ComputeParams & params) const;
    void attend_to_units(const ggml::ComputeParams & params) const;

    kernels::Queries queries_of(int64_t unit) const;
    void finish(int64_t unit, const kernels::Queries & queries, const uint8_t * partials) const;

    int64_t place(int64_t unit, int i) const;  // of a query among those of its head of the cache
    int64_t unit_bytes() const;                // of a unit's partials
    uint8_t * part(const ggml::ComputeParams & params, int64_t unit, int64_t chunk) const;

    const kernels::FloatKernels & kernels_;
    const ggml::Tensor * op_;
    const ggml::Tensor * query_;
    const ggml::Tensor * key_;
    const ggml::Tensor * value_;
    const ggml::Tensor * mask_;
    int64_t heads_;  // of the queries for each of the cache
    int64_t num_queries_;
    int64_t blocks_;  // units of a head of the cache
    int64_t num_units_;
    int64_t num_chunks_;
    float scale_ = 0.0F;
};

}  // namespace specllama
