// One block of a quantized row of a GGUF file, split into its scales, minima and codes.
#pragma once

#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// Value i is d * scales[i / span] * (codes[i] - offset) - dmin * minima[i / span]. See Layout and Offset for each type.
struct Block {
    uint16_t d = 0;          // a float16, or the first 16 bits of a float (see Codes)
    uint16_t dmin = 0;       // a float16: dmin or m (see Offset)
    int8_t scales[16] = {};  // as a panel has them (see Scales)
    uint8_t minima[16] = {};
    // For Q8_0 the signed bytes as they are; for IQ4, MXFP4 and NVFP4 the index in their table; for F16 and BF16 their
    // bytes. With grids nothing: their codes are the next two arrays.
    uint8_t codes[256] = {};
    uint16_t entries[64] = {};  // with grids: the index of each entry
    uint32_t signs[8] = {};     // with grids: the signs of 32 values, a bit for each
};

// Splits a block into its parts.
//
// source: layout_of(type).block_bytes bytes.
void take_apart(QuantizedType type, const uint8_t * source, Block & block);

// Computes the values of a block in double precision. values: [layout_of(type).values].
void dequantize(QuantizedType type, const Block & block, double * values);

// The value of a float16, exactly.
float half_to_float(uint16_t half);

// The value of which the first 16 bits of a float are given.
float brain_to_float(uint16_t brain);

// The scale of a block as a float: d is a float16, or the first 16 bits of a float (see Codes).
float scale_of(const Layout & layout, uint16_t d);

// The scale of a span as a number. code: as a panel has it (see Scales).
float scale_of_span(Scales scales, int8_t code);

// A value of F16 or BF16. at: its two bytes.
float float_at(const Layout & layout, const uint8_t * at);

}  // namespace specllama::kernels
