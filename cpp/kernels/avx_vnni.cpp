// The products with AVX-VNNI, in registers of 256 bits.
#include "kernels/avx2_lanes.hpp"
#include "kernels/byte_dots.hpp"

namespace specllama::kernels {

namespace {

struct AvxVnniLanes : Avx2Lanes {
    // How many columns are multiplied at once. One sum for each of four columns fits into the registers. If 16 values
    // share a scale (layout.span), the unpacked codes stay in registers instead, and eight columns share them.
    static constexpr int columns_at_once(const Layout & layout) { return layout.span == 16 ? 8 : 4; }
    // The instruction takes one factor as unsigned, so 128 is added to signed values.
    static constexpr bool kSignedProducts = false;
    static constexpr bool kIndexesSteps = false;
    static constexpr bool kHoldsAllSums = false;  // two sums of each column do not fit

    static Lanes dot_bytes(Lanes sum, Lanes codes, __m256i x) {
        return {_mm256_dpbusd_avx_epi32(sum.low, codes.low, x), _mm256_dpbusd_avx_epi32(sum.high, codes.high, x)};
    }
    static Lanes add_dot_words(Lanes sum, Lanes a, Lanes b) {
        return {_mm256_dpwssd_avx_epi32(sum.low, a.low, b.low), _mm256_dpwssd_avx_epi32(sum.high, a.high, b.high)};
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<ByteDots<StepDots<AvxVnniLanes>>, type, columns>;

template <int type>
constexpr Expand kExpand = expansion<ByteDots<StepDots<AvxVnniLanes>>, type>();

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

extern const InstructionSet kAvxVnni;
const InstructionSet kAvxVnni = {
    "AVX-VNNI", false, kMostColumns, quantize_x86, SPECLLAMA_TABLE, SPECLLAMA_EXPANSIONS, kFloatKernels<Avx2Floats>};

}  // namespace specllama::kernels
