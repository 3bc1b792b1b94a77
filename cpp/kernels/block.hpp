// One block of a quantized row, as a GGUF file holds it, taken apart.
#pragma once

#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// A value i is d * scales[i / span] * (codes[i] - offset) - dmin * minima[i / span]; see Layout and Offset.
struct Block {
    uint16_t d = 0;     // float16, or the first half of a float: see Codes
    uint16_t dmin = 0;  // float16: dmin or m
    int8_t scales[16] = {};
    uint8_t minima[16] = {};
    uint8_t codes[256] = {};  // for Q8_0 the bytes as they are; for IQ4 the index
};

// Takes a block apart.
//
// source: layout_of(type).block_bytes bytes.
void take_apart(QuantizedType type, const uint8_t * source, Block & block);

// The values of a block in double precision, for tests: layout_of(type).values of them.
void dequantize(QuantizedType type, const Block & block, double * values);

// A float16, exactly.
float half_to_float(uint16_t half);

// The scale of a block of a type: see Codes.
float scale_of(const Layout & layout, uint16_t d);

}  // namespace specllama::kernels
