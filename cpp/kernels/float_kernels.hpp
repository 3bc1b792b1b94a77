// Attention over a cache of floats, and products with one: the sums that are not those of quantized weights.
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

// Rows of a cache: float16 or float32, each row [length] of one piece.
struct CacheRows {
    const uint8_t * data;
    int64_t stride;  // bytes from one row to the next
};

// Lengths of rows are multiples of this.
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

// One for float16 and one for float32.
struct FloatKernels {
    MultiplyRows multiply_rows[2];
    Attend attend[2];
    MergePartials merge;
};

}  // namespace specllama::kernels
