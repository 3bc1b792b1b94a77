// One block of a quantized row of a GGUF file, split into its scales, minima and codes.
#pragma once

#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// Value i is d * scales[i / span] * (codes[i] - offset) - dmin * minima[i / span]. See Layout and Offset for each type.
struct Block {
    uint16_t d = 0;     // a float16, or the first 16 bits of a float (see Codes)
    uint16_t dmin = 0;  // a float16: dmin or m (see Offset)
    int8_t scales[16] = {};
    uint8_t minima[16] = {};
    uint8_t codes[256] = {};  // for Q8_0 the signed bytes as they are; for IQ4 and MXFP4 the index in their table
};

// Splits a block into its parts.
//
// source: layout_of(type).block_bytes bytes.
void take_apart(QuantizedType type, const uint8_t * source, Block & block);

// Computes the values of a block in double precision. values: [layout_of(type).values].
void dequantize(QuantizedType type, const Block & block, double * values);

// The value of a float16, exactly.
float half_to_float(uint16_t half);

// The scale of a block as a float: d is a float16, or the first 16 bits of a float (see Codes).
float scale_of(const Layout & layout, uint16_t d);

}  // namespace specllama::kernels
