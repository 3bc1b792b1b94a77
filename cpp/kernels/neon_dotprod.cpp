// The products with NEON's dot products of bytes (FEAT_DotProd: Apple's M1 and A11, Cortex-A55, A75 and later).
#include "kernels/byte_dots.hpp"
#include "kernels/neon_lanes.hpp"

namespace specllama::kernels {

namespace {

template <class Rows>
using Dots = ByteDots<StepDots<Rows>>;

template <int type, int columns>
constexpr Multiply kMultiply = multiply_in_registers<Dots, type, columns>;

template <int type>
constexpr Expand kExpand = expansion<Dots<NeonLanes>, type>();

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

extern const InstructionSet kNeonDotProd;
const InstructionSet kNeonDotProd = {
    "NEON dotprod",           false, kMostColumns, quantize_neon, SPECLLAMA_TABLE, SPECLLAMA_EXPANSIONS,
    kFloatKernels<NeonFloats>};

}  // namespace specllama::kernels
