// An instruction set: its implementation of the kernels, as a table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activations.hpp"
#include "kernels/float_kernels.hpp"
#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// The widest tile that any set has.
constexpr int kMostColumns = 8;

// Multiplies one panel with one tile.
//
// panel: num_blocks blocks of the panel; tile: as many blocks (see TileShape).
// out: [columns][kPanelRows] floats, all of which are written; stride: floats from one column to the next.
using Multiply = void (*)(const uint8_t * panel, int64_t num_blocks, const uint8_t * tile, float * out, int64_t stride);

// Writes a panel of a type with a grid as one of its expanded type. Its values are looked up once then, and not once
// for each tile.
using Expand = void (*)(const uint8_t * panel, int64_t num_blocks, uint8_t * out);

struct InstructionSet {
    const char * name;
    bool wide_signed;  // whether the tiles of types with signed values are wide: codes of 16 bits
    int tile;          // the most columns of a tile
    Quantize quantize;
    Multiply multiply[kNumLayouts][kMostColumns];  // by type and by columns - 1
    Expand expand[kNumTypes];                      // nullptr for types without grids
    FloatKernels floats;

    bool wide(QuantizedType type) const { return wide_signed && layout_of(type).is_signed; }
    // See quantize_block and place.
    void quantize_block(QuantizedType type, const float * x, QuantizedBlock & block) const {
        kernels::quantize_block(layout_of(type), quantize, x, block);
    }
    void place(QuantizedType type, const QuantizedBlock & block, int width, int column, uint8_t * tile_part) const {
        kernels::place(layout_of(type), wide(type), block, width, column, tile_part);
    }
};

// The set in plain C++, for any processor. Every other set gives the same bits, except where a sum of a block does not
// fit into 24 bits.
const InstructionSet & plain_set();

// Finds the sets for which this library was compiled and which this processor has: the fastest first, the plain one
// last.
//
// sets: room for kMostSets pointers. Returns the number of sets.
constexpr int kMostSets = 4;
int usable_sets(const InstructionSet ** sets);

}  // namespace specllama::kernels
