// A whole product on one thread, for small heads, tests and self-tests. Models use ggml's threads instead.
#pragma once

#include <cstdint>

#include "kernels/instruction_set.hpp"

namespace specllama::kernels {

// Multiplies quantized weights with columns of floats.
//
// weights: num_rows rows of `values` values, as in a GGUF file; x: [columns][values]; out: [columns][num_rows].
// fits(type, values) must be true.
void multiply_matrix(const InstructionSet & set, QuantizedType type, const uint8_t * weights, int64_t num_rows,
                     const float * x, int64_t columns, int64_t values, float * out);

// Multiplies weights that pack() has already packed.
void multiply_packed(const InstructionSet & set, QuantizedType type, const uint8_t * panels, int64_t num_rows,
                     const float * x, int64_t columns, int64_t values, float * out);

}  // namespace specllama::kernels
