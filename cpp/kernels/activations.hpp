// How columns of activations are held while they are multiplied: quantized to 8 bits, several columns interleaved.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// A tile holds several columns. For each block of the weights it has, one after the other,
//   - codes: [values / 4][columns][4] bytes; or, if wide (see InstructionSet), [values / 4][2][columns][2] int16:
//   values 0 and 2, then 1 and 3
//   - sums: [num_scales / 2][columns][2] int16: the sums of the codes over two spans (see Layout); without scales
//   [num_groups][columns] int32
//   - d: [num_groups][columns] float: the value of a code of 1.
// For weights that are floats it has the values themselves: [values][columns] floats.
// So a kernel finds everything at a fixed distance from one pointer.
struct TileShape {
    int code_bytes;   // bytes of the codes of one column of one block
    int sum_bytes;    // bytes of the sums of one column of one block
    int scale_bytes;  // bytes of the numbers d of one column of one block

    constexpr int column_bytes() const { return code_bytes + sum_bytes + scale_bytes; }
};

constexpr TileShape tile_shape(const Layout & layout, bool wide) {
    if (layout.is_float()) {
        return {4 * layout.values, 0, 0};
    }
    return {layout.values * (wide ? 2 : 1),
            layout.num_scales() == 0 ? 4 * layout.num_groups() : 2 * layout.num_scales(), 4 * layout.num_groups()};
}

// The columns of a batch are divided among tiles as evenly as possible: 9 columns in tiles of at most 8 are 5 and 4.
struct Tiles {
    int64_t columns;
    int64_t count;

    Tiles(int64_t num_columns, int most) : columns(num_columns), count((num_columns + most - 1) / most) {}
    int64_t begin(int64_t tile) const { return columns * tile / count; }
    int width(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
    // The tile that holds a column.
    int64_t of(int64_t column) const {
        int64_t tile = column * count / columns;
        while (begin(tile + 1) <= column) {
            ++tile;
        }
        return tile;
    }
};

// The most groups of a block that are quantized apart (see Layout::group).
constexpr int kMostGroups = 4;

// One block of one column, quantized symmetrically: the largest magnitude of a group gets the code 127.
struct QuantizedBlock {
    const float * x;  // the numbers as they were
    float d[kMostGroups];
    int8_t codes[256];
    int16_t sums[16];  // sums of the codes, over 16 values each
};

// Quantizes a group of 32 or 256 numbers.
using Quantize = void (*)(const float * x, int values, float & d, int8_t * codes, int16_t * sums);

// Quantizes the numbers of one block. Weights that are floats are multiplied with the numbers as they are.
//
// x: layout.values numbers, which must stay where they are until the block is placed.
void quantize_block(const Layout & layout, Quantize quantize, const float * x, QuantizedBlock & block);

// Writes a block of one column into a tile.
//
// tile: where the tile's part for this block begins; width: the number of the tile's columns; column: the index of the
// block's column.
void place(const Layout & layout, bool wide, const QuantizedBlock & block, int width, int column, uint8_t * tile);

// A Quantize in plain C++.
void quantize_plain(const float * x, int values, float & d, int8_t * codes, int16_t * sums);

}  // namespace specllama::kernels
