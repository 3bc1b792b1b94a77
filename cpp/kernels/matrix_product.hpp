// A whole product on one thread, for small heads and tests. Models use ggml's threads instead.
#pragma once

#include <cstdint>

#include "kernels/instruction_set.hpp"

namespace specllama::kernels {

// Multiplies quantized weights, which pack() has packed, with columns of floats.
//
// panels: num_rows rows of `values` values; x: [columns][values]; out: [columns][num_rows]. fits(type, values) must be
// true.
void multiply_packed(const InstructionSet & set, QuantizedType type, const uint8_t * panels, int64_t num_rows,
                     const float * x, int64_t columns, int64_t values, float * out);

}  // namespace specllama::kernels
