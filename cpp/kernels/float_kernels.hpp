// Kernels over a KV cache: attention, and products with rows of the cache.
//
// The result for a query depends only on that query and on the cells that it sees. It does not depend on how many
// queries come with it, on how many masked cells follow, or on which thread computes it.
#pragma once

#include <cstdint>

#include "kernels/recurrent.hpp"

// Loops over columns and steps are short. They are unrolled, so that their arrays become registers.
#ifdef __clang__
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 8")
#else
#define SPECLLAMA_UNROLL
#endif

namespace specllama::kernels {

// The type of the numbers in a cache.
enum class CacheType : int {
    half,    // float16
    single,  // float32
    // A float16, then 32 codes. What a code stands for, times the float16, is exact in float32.
    q8,   // ggml's Q8_0: signed bytes
    q4,   // ggml's Q4_0: nibbles, which stand for -8 to 7. The low nibbles of 16 bytes come first, then the high ones
    iq4,  // ggml's IQ4_NL: nibbles in the same order, indices of kIq4Values
};
constexpr int kCacheTypes = 5;
constexpr int64_t kBlockValues = 32;  // numbers in a block of a quantized type

constexpr bool is_quantized(CacheType type) { return type != CacheType::half && type != CacheType::single; }

// The bytes of a block of a quantized type; else those of a number.
constexpr int64_t block_bytes(CacheType type) {
    return type == CacheType::half ? 2 : type == CacheType::single ? 4 : type == CacheType::q8 ? 34 : 18;
}

// The bytes of `length` numbers; for quantized types these must be whole blocks.
constexpr int64_t cache_bytes(CacheType type, int64_t length) {
    return (is_quantized(type) ? length / kBlockValues : length) * block_bytes(type);
}

// Rows of a cache. The numbers of a row stand side by side.
struct CacheRows {
    const uint8_t * data;
    int64_t stride;  // bytes from one row to the next
};

// The length of a row is a multiple of kFloatLanes, and for quantized types of kBlockValues, too.
constexpr int kFloatLanes = 16;
// The most queries (or columns) that are computed together.
constexpr int kMostQueries = 16;
// The scores of kTileCells cells are computed at once. The sums over kChunkCells cells are computed separately, and
// then added. Tiles and chunks are counted from the first cell on, so that they are the same for all queries.
constexpr int kTileCells = 64;
constexpr int kChunkCells = 256;

// out[c][r] = sum over i of rows[r][i] * x[c][i].
//
// x: [columns][length]; columns: at most kMostQueries.
using MultiplyRows = void (*)(const CacheRows & rows, int64_t num_rows, const float * const * x, int columns,
                              int64_t length, float * const * out);

// The mask of a hidden cell: minus infinity, as float16.
constexpr uint16_t kHidden = 0xFC00;

// Queries that read one head of the cache.
struct Queries {
    CacheRows keys;
    CacheRows values;
    int64_t key_length;
    int64_t value_length;
    float scale;
    float cap;  // a score s counts as cap * tanh(s / cap); 0: scores are not capped
    int count;
    const float * vectors[kMostQueries];  // [key_length] each
    // [cells] float16 each. The mask times the query's slope is added to the scores; minus infinity hides a cell.
    const uint8_t * masks[kMostQueries];
    float slopes[kMostQueries];  // above 0; 1 without ALiBi
};

// The attention of a query to some cells, before it is divided by `sum`. The values [value_length] follow the
// structure.
struct Partial {
    float largest;  // the largest score; the lowest number if no cell was seen
    float sum;      // the sum of exp(score - largest)
    float unused[kFloatLanes - 2];
    float * values() { return reinterpret_cast<float *>(this + 1); }
    const float * values() const { return reinterpret_cast<const float *>(this + 1); }
    static constexpr int64_t bytes(int64_t value_length) {
        return static_cast<int64_t>(sizeof(Partial)) + value_length * static_cast<int64_t>(sizeof(float));
    }
};

// Computes the attention to the cells from `first` (a multiple of kChunkCells) to `last` (not included). Their number
// is a multiple of kFloatLanes and at most kChunkCells.
//
// fetched: the end of the cells that are prefetched meanwhile, because they are needed next; 0: no cell is prefetched.
// out: [queries.count] partials, Partial::bytes(value_length) apart.
using Attend = void (*)(const Queries & queries, int64_t first, int64_t last, int64_t fetched, uint8_t * out);

// Adds the partial `from` to `into`. The cells of `from` come after the cells of `into`.
using MergePartials = void (*)(Partial & into, const Partial & from, int64_t value_length);

// What the kernels of an instruction set are, those of recurrent.hpp among them.
struct FloatKernels {
    MultiplyRows multiply_rows[kCacheTypes];
    Attend attend[kCacheTypes];
    MergePartials merge;
    UpdateState update_state;

    MultiplyRows multiply_rows_of(CacheType type) const { return multiply_rows[static_cast<int>(type)]; }
    Attend attend_to(CacheType type) const { return attend[static_cast<int>(type)]; }
};

}  // namespace specllama::kernels
