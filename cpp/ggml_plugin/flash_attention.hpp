// One FLASH_ATTN_EXT over a cache, divided among ggml's threads.
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
    // op: an operation for which fits() is true.
    FlashAttention(const kernels::FloatKernels & kernels, const ggml::Tensor * op);

    // Whether the operation is of the usual kind: one mask for all heads, and rows that fill whole lanes.
    static bool fits(const ggml::Tensor * op);

    std::size_t work_bytes(int num_threads) const;

    // Does a thread's share of the operation. wait() must return when all threads have called it; either every thread
    // calls it once, or none does.
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
    // Neighbouring queries that read the same head of the cache.
    struct Unit {
        int64_t head;
        int64_t stream;
        int64_t place;  // the place of the first query: token * heads_ + the head of the query
        int64_t count;  // at most kMostQueries
    };

    // The texts of a batch, if there are several. The attention of each text is computed over its own cells, because
    // most of the cache is hidden from the text.
    std::vector<TextInBatch> texts_of() const;
    void attend_to_texts(const ggml::ComputeParams & params, const std::vector<TextInBatch> & texts) const;

    // Whether several threads compute one unit, each for a part of the cache. They do so if there are few units.
    bool splits(int num_threads) const;
    void attend_in_parts(const ggml::ComputeParams & params) const;
    void merge_parts(const ggml::ComputeParams & params) const;
    void attend_to_units(const ggml::ComputeParams & params) const;

    Unit unit_of(int64_t number) const;
    kernels::Queries queries_of(const Unit & unit) const;
    float sink_of(int64_t query_head) const;
    void finish(const Unit & unit, const uint8_t * partials) const;

    int64_t unit_bytes() const;    // bytes of the partials of a unit
    int64_t thread_bytes() const;  // bytes that a thread needs for whole units
    uint8_t * room_of(const ggml::ComputeParams & params) const;
    uint8_t * part(const ggml::ComputeParams & params, int64_t unit, int64_t chunk) const;

    const kernels::FloatKernels & kernels_;
    const ggml::Tensor * op_;
    const ggml::Tensor * query_;
    const ggml::Tensor * key_;
    const ggml::Tensor * value_;
    const ggml::Tensor * mask_;
    kernels::CacheType type_;
    int64_t heads_;  // heads of the queries that read one head of the cache
    int64_t num_queries_;
    int64_t blocks_;  // units of one head of the cache
    int64_t num_units_;
    int64_t num_chunks_;
    float scale_ = 0.0F;
    float most_bias_ = 0.0F;  // the largest bias of ALiBi; 0 without ALiBi
    float cap_ = 0.0F;        // the cap of scores; 0 without one
};

}  // namespace specllama
