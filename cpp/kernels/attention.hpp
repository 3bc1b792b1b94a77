// Attention of some queries to all cells of a cache, computed in chunks of kChunkCells (see float_kernels.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_kernels.hpp"

namespace specllama::kernels {

// Computes the attention to the first `cells` cells, a multiple of kFloatLanes.
//
// queries: [count]; their partials, as Attend writes them, are `bytes` apart in `out`, which has room for the partials
// of count + 1 queries.
void attend_to_all(const FloatKernels & kernels, CacheType type, const Queries * queries, int64_t count, int64_t cells,
                   uint8_t * out, int64_t bytes);

// Computes the attention to one chunk of the first `cells` cells.
//
// fetches: whether the rows that are needed next are prefetched meanwhile.
void attend_to_chunk(const FloatKernels & kernels, CacheType type, const Queries & queries, int64_t cells,
                     int64_t chunk, bool fetches, uint8_t * out);

// All cells that some queries see, in the order in which they are added up.
struct SeenCells {
    const int32_t * cells;
    int64_t count;
    int64_t room;  // how many cells the cache has
};

// Computes what attend_to_all gives for a cache that has only these cells, side by side.
//
// work: as many bytes as packed_bytes says.
void attend_to_some(const FloatKernels & kernels, CacheType type, const Queries & queries, const SeenCells & seen,
                    uint8_t * out, uint8_t * spare, uint8_t * work);
std::size_t packed_bytes(int64_t key_length, int64_t value_length, CacheType type);

// Adds the partials of the next chunk to those of the chunks before.
void merge_all(const FloatKernels & kernels, const Queries & queries, uint8_t * into, const uint8_t * from);

// Computes the result of one query, out [length]; 0 if the query saw no cell.
//
// sink: the score of a further cell, with the value 0, that each query sees; minus infinity if there is none.
void divide(const Partial & partial, int64_t length, float sink, float * out);

}  // namespace specllama::kernels
