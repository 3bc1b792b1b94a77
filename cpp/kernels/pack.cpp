#include "kernels/pack.hpp"

#include <cstring>

#include "kernels/block.hpp"

namespace specllama::kernels {

namespace {

// The codes of the steps first, first + 1, ... of a row: the bits from `from` on, `width` of them, of so many steps in
// one lane, the first step lowest.
uint32_t lane(const uint32_t * steps, int first, int stride, int count, int from, int width) {
    const uint32_t mask = 0x01010101U * ((1U << width) - 1);
    uint32_t packed = 0;
    for (int i = 0; i < count; ++i) {
        packed |= ((steps[first + stride * i] >> from) & mask) << (width * i);
    }
    return packed;
}

void put(uint8_t * panel, int line, int row, uint32_t value) {
    std::memcpy(panel + 64 * line + kStep * row, &value, sizeof value);
}

// 32 values of one row.
void pack_codes(const Layout & layout, const uint8_t * codes, int row, uint8_t * panel) {
    uint32_t steps[8];
    std::memcpy(steps, codes, sizeof steps);
    if (layout.low_bits == 8) {
        for (int step = 0; step < 8; ++step) {
            put(panel, step, row, steps[step]);
        }
    } else if (layout.low_bits == 4) {
        for (int step = 0; step < 4; ++step) {
            put(panel, step, row, lane(steps, step, 4, 2, 0, 4));
        }
    } else {
        for (int half = 0; half < 2; ++half) {
            put(panel, half, row, lane(steps, 4 * half, 1, 4, 0, 2));
        }
    }
    if (layout.high_bits == 1) {
        put(panel, layout.low_bits, row, lane(steps, 0, 1, 8, layout.low_bits, 1));
    } else if (layout.high_bits == 2) {
        for (int half = 0; half < 2; ++half) {
            put(panel, layout.low_bits + half, row, lane(steps, 4 * half, 1, 4, layout.low_bits, 2));
        }
    }
}

void pack_block(const Layout & layout, const Block & block, int row, uint8_t * panel) {
    for (int part = 0; part < layout.values / 32; ++part) {
        pack_codes(layout, block.codes + 32 * part, row, panel + 64 * (layout.low_bits + layout.high_bits) * part);
    }
    std::memcpy(panel + layout.d_at() + 2 * row, &block.d, 2);
    if (layout.has_minimum()) {
        std::memcpy(panel + layout.minimum_at() + 2 * row, &block.dmin, 2);
    }
    for (int i = 0; i < layout.num_scales(); ++i) {
        const int at = 2 * kPanelRows * (i / 2) + 2 * row + i % 2;
        auto scale = static_cast<uint8_t>(block.scales[i]);
        if (layout.packed) {
            scale = static_cast<uint8_t>(scale | (block.minima[i] << 4));
        } else if (layout.kind == Offset::minimum) {
            panel[layout.minima_at() + at] = block.minima[i];
        }
        panel[layout.scales_at() + at] = scale;
    }
}

}  // namespace

void pack(QuantizedType type, const uint8_t * rows, int64_t num_rows, int64_t columns, int64_t first, int64_t last,
          uint8_t * panels) {
    const Layout layout = layout_of(type);
    const int64_t num_blocks = columns / layout.values;
    Block block;
    for (int64_t panel = first; panel < last; ++panel) {
        uint8_t * out = panels + panel * num_blocks * layout.panel_bytes();
        for (int64_t b = 0; b < num_blocks; ++b, out += layout.panel_bytes()) {
            for (int row = 0; row < kPanelRows; ++row) {
                const int64_t at = kPanelRows * panel + row;
                if (at < num_rows) {
                    take_apart(type, rows + (at * num_blocks + b) * layout.block_bytes, block);
                } else {
                    block = Block{};
                }
                pack_block(layout, block, row, out);
            }
        }
    }
}

}  // namespace specllama::kernels
