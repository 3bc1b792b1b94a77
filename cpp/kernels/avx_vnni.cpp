// The products with AVX-VNNI, in registers of 256 bits.
#include "kernels/avx2_lanes.hpp"
#include "kernels/vnni.hpp"

namespace specllama::kernels {

namespace {

struct AvxVnniLanes : Avx2Lanes {
    static Lanes dot_bytes(Lanes sum, Lanes codes, __m256i x) {
        return {_mm256_dpbusd_avx_epi32(sum.low, codes.low, x), _mm256_dpbusd_avx_epi32(sum.high, codes.high, x)};
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<Vnni<AvxVnniLanes>, type, columns>;

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#include "kernels/table.inc"

extern const InstructionSet kAvxVnni;
const InstructionSet kAvxVnni = {"AVX-VNNI",   false,           kMostColumns,
                                 quantize_x86, SPECLLAMA_TABLE, kFloatKernels<Avx2Floats>};

}  // namespace specllama::kernels
