// Attention over a cache, and products with one: the sums that are not those of quantized weights.
//
// What is computed for a query depends on that query and on the cells that it sees, and on nothing else: not on how
// many queries come with it, nor on how much room after its cells is masked, nor on which thread does what.
#pragma once

#include <cstdint>

// Loops over columns and steps are short, and their arrays are to be registers.
#ifdef __clang__
#define SPECLLAMA_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECLLAMA_UNROLL _Pragma("GCC unroll 8")
#else
#define SPECLLAMA_UNROLL
#endif

namespace specllama::kernels {

// What the numbers of a cache are.
enum class CacheType : int {
    half,    // float16
    single,  // float32
    q8,      // ggml's Q8_0: a float16 that 32 signed bytes behind it are multiplied with, which gives a float32 exactly
};
constexpr int kCacheTypes = 3;
constexpr int64_t kQ8Values = 32;  // of a block, and
constexpr int64_t kQ8Bytes = 34;   // all that it takes

// The bytes of so many numbers; of q8 whole blocks.
constexpr int64_t cache_bytes(CacheType type, int64_t length) {
    return type == CacheType::q8 ? length / kQ8Values * kQ8Bytes : length * (type == CacheType::half ? 2 : 4);
}

// Rows of a cache, each row [length] of one piece.
struct CacheRows {
    const uint8_t * data;
    int64_t stride;  // bytes from one row to the next
};

// Lengths of rows are multiples of this, and of q8 of its blocks.
constexpr int kFloatLanes = 16;
// Queries (or columns) that go through the cache together.
constexpr int kMostQueries = 16;
// Cells whose scores are computed at once, and cells whose sum stands for itself before it is added to others: both
// counted from the first cell on, so that they are the same for all.
constexpr int kTileCells = 64;
constexpr int kChunkCells = 256;

// out[c][r] = sum over i of rows[r][i] * x[c][i].
//
// x: [columns][length]; columns: at most kMostQueries.
using MultiplyRows = void (*)(const CacheRows & rows, int64_t num_rows, const float * const * x, int columns,
                              int64_t length, float * const * out);

// What a mask says of a cell that is hidden: minus infinity, as float16.
constexpr uint16_t kHidden = 0xFC00;

// Queries of one head of the cache.
struct Queries {
    CacheRows keys;
    CacheRows values;
    int64_t key_length;
    int64_t value_length;
    float scale;
    float cap;  // a score s counts as cap * tanh(s / cap); 0: there is none
    int count;
    const float * vectors[kMostQueries];  // [key_length] each
    // [cells] float16 each: added to the scores, times the query's slope; minus infinity hides a cell.
    const uint8_t * masks[kMostQueries];
    float slopes[kMostQueries];  // above 0; 1 where there is no ALiBi
};

// What some cells give for a query, before it is divided by `sum`; `values` [value_length] follow.
struct Partial {
    float largest;  // score; the lowest number if no cell was seen
    float sum;      // of exp(score - largest)
    float unused[kFloatLanes - 2];
    float * values() { return reinterpret_cast<float *>(this + 1); }
    const float * values() const { return reinterpret_cast<const float *>(this + 1); }
    static constexpr int64_t bytes(int64_t value_length) {
        return static_cast<int64_t>(sizeof(Partial)) + value_length * static_cast<int64_t>(sizeof(float));
    }
};

// The cells first (a multiple of kChunkCells) to last, at most kChunkCells of them and a multiple of kFloatLanes.
//
// out: [queries.count] partials, Partial::bytes(value_length) apart.
using Attend = void (*)(const Queries & queries, int64_t first, int64_t last, uint8_t * out);

// Adds the cells of `from`, which come after those of `into`.
using MergePartials = void (*)(Partial & into, const Partial & from, int64_t value_length);

struct FloatKernels {
    MultiplyRows multiply_rows[kCacheTypes];
    Attend attend[kCacheTypes];
    MergePartials merge;

    MultiplyRows multiply_rows_of(CacheType type) const { return multiply_rows[static_cast<int>(type)]; }
    Attend attend_to(CacheType type) const { return attend[static_cast<int>(type)]; }
};

}  // namespace specllama::kernels
