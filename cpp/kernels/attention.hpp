// Attention of some queries to all cells of a cache, as the chunks that float_kernels.hpp counts them in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_kernels.hpp"

namespace specllama::kernels {

// out, spare: [queries.count] partials each, see Attend; cells: a multiple of kFloatLanes.
void attend_to_all(const FloatKernels & kernels, CacheType type, const Queries & queries, int64_t cells, uint8_t * out,
                   uint8_t * spare);

// One chunk of them.
void attend_to_chunk(const FloatKernels & kernels, CacheType type, const Queries & queries, int64_t cells,
                     int64_t chunk, uint8_t * out);

// Cells that some queries see, in the order in which they are counted. Each of the queries sees no other.
struct SeenCells {
    const int32_t * cells;
    int64_t count;
    int64_t room;  // cells that the cache has
};

// What attend_to_all gives if the cache has these cells alone: side by side, and none between them.
//
// work: as many bytes as packed_bytes says.
void attend_to_some(const FloatKernels & kernels, CacheType type, const Queries & queries, const SeenCells & seen,
                    uint8_t * out, uint8_t * spare, uint8_t * work);
std::size_t packed_bytes(int64_t key_length, int64_t value_length, CacheType type);

// Adds the partials of the next chunk.
void merge_all(const FloatKernels & kernels, const Queries & queries, uint8_t * into, const uint8_t * from);

// The result of one query [length]; 0 if it saw no cell.
//
// sink: the score of a cell whose value is 0, which each query sees besides; minus infinity: there is none.
void divide(const Partial & partial, int64_t length, float sink, float * out);

}  // namespace specllama::kernels
