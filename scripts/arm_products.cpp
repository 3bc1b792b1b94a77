// One product for ARM, for scripts/arm_estimate.py: 16 rows of weights and some columns, between two calls that it
// finds.
//
// usage: arm_products ours|theirs dotprod|i8mm TYPE COLUMNS
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/instruction_set.hpp"

using namespace specllama::kernels;

namespace specllama::kernels {
extern const InstructionSet kNeonDotProd;
extern const InstructionSet kNeonI8mm;
}  // namespace specllama::kernels

extern "C" {
// llama.cpp's products of repacked weights: `nc` rows of `n` values with `nr` columns.
using Theirs = void(int n, float * s, std::size_t bs, const void * vx, const void * vy, int nr, int nc);
Theirs ggml_gemv_q4_0_4x4_q8_0, ggml_gemv_q4_0_4x8_q8_0, ggml_gemm_q4_0_4x4_q8_0, ggml_gemm_q4_0_4x8_q8_0;
Theirs ggml_gemv_q8_0_4x4_q8_0, ggml_gemv_q8_0_4x8_q8_0, ggml_gemm_q8_0_4x4_q8_0, ggml_gemm_q8_0_4x8_q8_0;
Theirs ggml_gemv_q4_K_8x4_q8_K, ggml_gemv_q4_K_8x8_q8_K, ggml_gemm_q4_K_8x4_q8_K, ggml_gemm_q4_K_8x8_q8_K;
Theirs ggml_gemv_q5_K_8x4_q8_K, ggml_gemv_q5_K_8x8_q8_K, ggml_gemm_q5_K_8x4_q8_K, ggml_gemm_q5_K_8x8_q8_K;
Theirs ggml_gemv_q6_K_8x4_q8_K, ggml_gemv_q6_K_8x8_q8_K, ggml_gemm_q6_K_8x4_q8_K, ggml_gemm_q6_K_8x8_q8_K;
Theirs ggml_gemv_iq4_nl_4x4_q8_0, ggml_gemm_iq4_nl_4x4_q8_0, ggml_gemv_mxfp4_4x4_q8_0, ggml_gemm_mxfp4_4x4_q8_0;

__attribute__((noinline)) void specllama_begin() { __asm__ volatile("nop"); }
__attribute__((noinline)) void specllama_end() { __asm__ volatile("nop"); }
}

namespace {

constexpr int kRows = 16;
constexpr int kValues = 1024;

struct Pair {
    const char * type;
    Theirs * one;   // a product with one column, by dot products
    Theirs * some;  // with several
    Theirs * one_i8mm;
    Theirs * some_i8mm;
};

// As ggml_repack_get_optimal_repack_type chooses them for NEON.
constexpr Pair kTheirs[] = {
    {"Q4_0", ggml_gemv_q4_0_4x4_q8_0, ggml_gemm_q4_0_4x4_q8_0, ggml_gemv_q4_0_4x8_q8_0, ggml_gemm_q4_0_4x8_q8_0},
    {"Q8_0", ggml_gemv_q8_0_4x4_q8_0, ggml_gemm_q8_0_4x4_q8_0, ggml_gemv_q8_0_4x8_q8_0, ggml_gemm_q8_0_4x8_q8_0},
    {"Q4_K", ggml_gemv_q4_K_8x4_q8_K, ggml_gemm_q4_K_8x4_q8_K, ggml_gemv_q4_K_8x8_q8_K, ggml_gemm_q4_K_8x8_q8_K},
    {"Q5_K", ggml_gemv_q5_K_8x4_q8_K, ggml_gemm_q5_K_8x4_q8_K, ggml_gemv_q5_K_8x8_q8_K, ggml_gemm_q5_K_8x8_q8_K},
    {"Q6_K", ggml_gemv_q6_K_8x4_q8_K, ggml_gemm_q6_K_8x4_q8_K, ggml_gemv_q6_K_8x8_q8_K, ggml_gemm_q6_K_8x8_q8_K},
    {"IQ4_NL", ggml_gemv_iq4_nl_4x4_q8_0, ggml_gemm_iq4_nl_4x4_q8_0, ggml_gemv_iq4_nl_4x4_q8_0,
     ggml_gemm_iq4_nl_4x4_q8_0},
    {"MXFP4", ggml_gemv_mxfp4_4x4_q8_0, ggml_gemm_mxfp4_4x4_q8_0, ggml_gemv_mxfp4_4x4_q8_0, ggml_gemm_mxfp4_4x4_q8_0},
};

// llama.cpp multiplies four columns at a time, and the rest one by one.
void multiply_theirs(const Pair & pair, bool i8mm, int columns, const std::vector<uint8_t> & weights,
                     const std::vector<uint8_t> & x, std::vector<float> & out) {
    Theirs * some = i8mm ? pair.some_i8mm : pair.some;
    Theirs * one = i8mm ? pair.one_i8mm : pair.one;
    const int in_fours = columns / 4 * 4;
    if (in_fours > 0) {
        some(kValues, out.data(), kRows, weights.data(), x.data(), in_fours, kRows);
    }
    for (int column = in_fours; column < columns; ++column) {
        one(kValues, out.data() + static_cast<std::ptrdiff_t>(column) * kRows, kRows, weights.data(), x.data(), 1,
            kRows);
    }
}

void multiply_ours(const InstructionSet & set, int type, int columns, const std::vector<uint8_t> & weights,
                   const std::vector<uint8_t> & x, std::vector<float> & out) {
    const int64_t blocks = kValues / layout_of(static_cast<QuantizedType>(type)).values;
    for (int column = 0; column < columns; column += set.tile) {
        const int width = columns - column < set.tile ? columns - column : set.tile;
        set.multiply[type][width - 1](weights.data(), blocks, x.data(),
                                      out.data() + static_cast<std::ptrdiff_t>(column) * kRows, kRows);
    }
}

}  // namespace

int main(int count, char ** arguments) {
    if (count != 5) {
        std::puts("usage: arm_products ours|theirs dotprod|i8mm TYPE COLUMNS");
        return 2;
    }
    const bool ours = std::strcmp(arguments[1], "ours") == 0;
    const bool i8mm = std::strcmp(arguments[2], "i8mm") == 0;
    const int columns = std::atoi(arguments[4]);
    const InstructionSet & set = i8mm ? kNeonI8mm : kNeonDotProd;
    // Their content is of no importance: what is computed does not depend on it.
    const std::vector<uint8_t> weights(1 << 20);
    const std::vector<uint8_t> x(1 << 20);
    std::vector<float> out(static_cast<std::size_t>(16 * kRows));
    for (const Pair & pair : kTheirs) {
        if (std::strcmp(pair.type, arguments[3]) == 0 && !ours) {
            specllama_begin();
            multiply_theirs(pair, i8mm, columns, weights, x, out);
            specllama_end();
            return 0;
        }
    }
    for (int type = 0; type < kNumTypes; ++type) {
        if (std::strcmp(kTypeNames[type], arguments[3]) == 0 && ours) {
            specllama_begin();
            multiply_ours(set, type, columns, weights, x, out);
            specllama_end();
            return 0;
        }
    }
    return 1;
}
