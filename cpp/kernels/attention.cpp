#include "kernels/attention.hpp"

#include <algorithm>

namespace specllama::kernels {

void attend_to_chunk(const FloatKernels & kernels, bool half, const Queries & queries, int64_t cells, int64_t chunk,
                     uint8_t * out) {
    const int64_t first = chunk * kChunkCells;
    kernels.attend[half ? 0 : 1](queries, first, std::min<int64_t>(first + kChunkCells, cells), out);
}

void attend_to_all(const FloatKernels & kernels, bool half, const Queries & queries, int64_t cells, uint8_t * out,
                   uint8_t * spare) {
    attend_to_chunk(kernels, half, queries, cells, 0, out);
    for (int64_t chunk = 1; chunk * kChunkCells < cells; ++chunk) {
        attend_to_chunk(kernels, half, queries, cells, chunk, spare);
        merge_all(kernels, queries, out, spare);
    }
}

void merge_all(const FloatKernels & kernels, const Queries & queries, uint8_t * into, const uint8_t * from) {
    for (int i = 0; i < queries.count; ++i) {
        const int64_t offset = i * Partial::bytes(queries.value_length);
        kernels.merge(*reinterpret_cast<Partial *>(into + offset), *reinterpret_cast<const Partial *>(from + offset),
                      queries.value_length);
    }
}

void divide(const Partial & partial, int64_t length, float * out) {
    const float inverse = partial.sum > 0.0F ? 1.0F / partial.sum : 0.0F;
    for (int64_t i = 0; i < length; ++i) {
        out[i] = partial.values()[i] * inverse;
    }
}

}  // namespace specllama::kernels
