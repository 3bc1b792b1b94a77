#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace specllama::kernels {

namespace {

constexpr int64_t kMaskBytes = sizeof(uint16_t);

int64_t whole_lanes(int64_t cells) { return (cells + kFloatLanes - 1) / kFloatLanes * kFloatLanes; }

bool lie_together(const int32_t * cells, int64_t count, int64_t room) {
    return cells[count - 1] - cells[0] == count - 1 && cells[0] + whole_lanes(count) <= room;
}

// Returns the same queries for the part of the cache that begins with the cell `first`.
Queries moved(const Queries & queries, int64_t first) {
    Queries made = queries;
    made.keys.data += first * made.keys.stride;
    made.values.data += first * made.values.stride;
    for (int i = 0; i < made.count; ++i) {
        made.masks[i] += first * kMaskBytes;
    }
    return made;
}

CacheRows packed_rows(const CacheRows & rows, int64_t row_bytes, const int32_t * cells, int64_t count, uint8_t * out) {
    for (int64_t i = 0; i < count; ++i) {
        std::memcpy(out + i * row_bytes, rows.data + cells[i] * rows.stride, static_cast<std::size_t>(row_bytes));
    }
    // The rows after the copied ones, up to whole lanes, are hidden by the mask. They must not be NaN, since 0 times
    // NaN is NaN.
    std::memset(out + count * row_bytes, 0, static_cast<std::size_t>((whole_lanes(count) - count) * row_bytes));
    return {out, row_bytes};
}

// Returns the same queries for a cache that has only copies of these cells.
Queries packed(const Queries & queries, CacheType type, const int32_t * cells, int64_t count, uint8_t * work) {
    Queries made = queries;
    const int64_t key_bytes = cache_bytes(type, queries.key_length);
    const int64_t value_bytes = cache_bytes(type, queries.value_length);
    made.keys = packed_rows(queries.keys, key_bytes, cells, count, work);
    work += kChunkCells * key_bytes;
    made.values = packed_rows(queries.values, value_bytes, cells, count, work);
    work += kChunkCells * value_bytes;
    for (int q = 0; q < queries.count; ++q) {
        uint8_t * mask = work + q * kChunkCells * kMaskBytes;
        for (int64_t i = 0; i < count; ++i) {
            std::memcpy(mask + i * kMaskBytes, queries.masks[q] + cells[i] * kMaskBytes, kMaskBytes);
        }
        for (int64_t i = count; i < whole_lanes(count); ++i) {
            std::memcpy(mask + i * kMaskBytes, &kHidden, kMaskBytes);
        }
        made.masks[q] = mask;
    }
    return made;
}

}  // namespace

void attend_to_chunk(const FloatKernels & kernels, CacheType type, const Queries & queries, int64_t cells,
                     int64_t chunk, bool fetches, uint8_t * out) {
    const int64_t first = chunk * kChunkCells;
    kernels.attend_to(type)(queries, first, std::min<int64_t>(first + kChunkCells, cells), fetches ? cells : 0, out);
}

void attend_to_all(const FloatKernels & kernels, CacheType type, const Queries * queries, int64_t count, int64_t cells,
                   uint8_t * out, int64_t bytes) {
    uint8_t * spare = out + count * bytes;
    for (int64_t chunk = 0; chunk * kChunkCells < cells; ++chunk) {
        for (int64_t i = 0; i < count; ++i) {
            const bool fetches = i == 0 || queries[i].keys.data != queries[i - 1].keys.data;  // once for each head
            attend_to_chunk(kernels, type, queries[i], cells, chunk, fetches, chunk == 0 ? out + i * bytes : spare);
            if (chunk > 0) {
                merge_all(kernels, queries[i], out + i * bytes, spare);
            }
        }
    }
}

std::size_t packed_bytes(int64_t key_length, int64_t value_length, CacheType type) {
    const int64_t row = cache_bytes(type, key_length) + cache_bytes(type, value_length) + kMostQueries * kMaskBytes;
    return static_cast<std::size_t>(kChunkCells * row);
}

void attend_to_some(const FloatKernels & kernels, CacheType type, const Queries & queries, const SeenCells & seen,
                    uint8_t * out, uint8_t * spare, uint8_t * work) {
    for (int64_t first = 0; first < seen.count; first += kChunkCells) {
        const int32_t * cells = seen.cells + first;
        const int64_t count = std::min<int64_t>(kChunkCells, seen.count - first);
        const bool together = lie_together(cells, count, seen.room);
        const Queries some = together ? moved(queries, cells[0]) : packed(queries, type, cells, count, work);
        const int64_t fetched = together ? seen.count - first : 0;  // the next cells mostly follow these
        kernels.attend_to(type)(some, 0, whole_lanes(count), fetched, first == 0 ? out : spare);
        if (first > 0) {
            merge_all(kernels, queries, out, spare);
        }
    }
}

void merge_all(const FloatKernels & kernels, const Queries & queries, uint8_t * into, const uint8_t * from) {
    for (int i = 0; i < queries.count; ++i) {
        const int64_t offset = i * Partial::bytes(queries.value_length);
        kernels.merge(*reinterpret_cast<Partial *>(into + offset), *reinterpret_cast<const Partial *>(from + offset),
                      queries.value_length);
    }
}

void divide(const Partial & partial, int64_t length, float sink, float * out) {
    const float inverse = partial.sum > 0.0F ? 1.0F / (partial.sum + std::exp(sink - partial.largest)) : 0.0F;
    for (int64_t i = 0; i < length; ++i) {
        out[i] = partial.values()[i] * inverse;
    }
}

}  // namespace specllama::kernels
