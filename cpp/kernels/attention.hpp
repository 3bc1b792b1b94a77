// Attention of some queries to all cells of a cache, as the chunks that float_kernels.hpp counts them in.
#pragma once

#include "kernels/float_kernels.hpp"

namespace specllama::kernels {

// out, spare: [queries.count] partials each, see Attend; cells: a multiple of kFloatLanes.
void attend_to_all(const FloatKernels & kernels, bool half, const Queries & queries, int64_t cells, uint8_t * out,
                   uint8_t * spare);

// One chunk of them.
void attend_to_chunk(const FloatKernels & kernels, bool half, const Queries & queries, int64_t cells, int64_t chunk,
                     uint8_t * out);

// Adds the partials of the next chunk.
void merge_all(const FloatKernels & kernels, const Queries & queries, uint8_t * into, const uint8_t * from);

// The result of one query [length]; 0 if it saw no cell.
void divide(const Partial & partial, int64_t length, float * out);

}  // namespace specllama::kernels
