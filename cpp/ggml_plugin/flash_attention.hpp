// One FLASH_ATTN_EXT over a cache, shared out to ggml's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ggml/ggml_layout.hpp"
#include "ggml_plugin/texts_in_batch.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

class FlashAttention {
public:
    // op: one that `fits`.
    FlashAttention(const kernels::FloatKernels & kernels, const ggml::Tensor * op);

    // Whether it is of the usual kind: a mask for all heads, whole lanes.
    static bool fits(const ggml::Tensor * op);

    std::size_t work_bytes(int num_threads) const;

    // `wait` is called at most once, and then in each thread: until all are there.
    template <class Wait>
    void compute(const ggml::ComputeParams & params, Wait wait) const {
        const std::vector<TextInBatch> texts = texts_of();
        if (!texts.empty()) {
            attend_to_texts(params, texts);
        } else if (splits(params.nth)) {
            attend_in_parts(params);
            wait();
            merge_parts(params);
        } else {
            attend_to_units(params);
        }
    }

private:
    // Queries of one head of the cache, one after the other.
    struct Unit {
        int64_t head;
        int64_t stream;
        int64_t place;  // of the first one: token * heads_ + head of the query
        int64_t count;  // at most kMostQueries
    };

    // Of a batch with several texts: each is computed over its own cells, as most of the cache is hidden from it.
    std::vector<TextInBatch> texts_of() const;
    void attend_to_texts(const ggml::ComputeParams & params, const std::vector<TextInBatch> & texts) const;

    // Few units are shared out by parts of the cache.
    bool splits(int num_threads) const;
    void attend_in_parts(const ggml::ComputeParams & params) const;
    void merge_parts(const ggml::ComputeParams & params) const;
    void attend_to_units(const ggml::ComputeParams & params) const;

    Unit unit_of(int64_t number) const;
    kernels::Queries queries_of(const Unit & unit) const;
    float sink_of(int64_t query_head) const;
    void finish(const Unit & unit, const uint8_t * partials) const;

    int64_t unit_bytes() const;    // of a unit's partials
    int64_t thread_bytes() const;  // of what a thread needs that has whole units
    uint8_t * room_of(const ggml::ComputeParams & params) const;
    uint8_t * part(const ggml::ComputeParams & params, int64_t unit, int64_t chunk) const;

    const kernels::FloatKernels & kernels_;
    const ggml::Tensor * op_;
    const ggml::Tensor * query_;
    const ggml::Tensor * key_;
    const ggml::Tensor * value_;
    const ggml::Tensor * mask_;
    kernels::CacheType type_;
    int64_t heads_;  // of the queries for each of the cache
    int64_t num_queries_;
    int64_t blocks_;  // units of a head of the cache
    int64_t num_units_;
    int64_t num_chunks_;
    float scale_ = 0.0F;
    float most_bias_ = 0.0F;  // of ALiBi; 0: there is none
    float cap_ = 0.0F;        // of scores; 0: there is none
};

}  // namespace specllama
