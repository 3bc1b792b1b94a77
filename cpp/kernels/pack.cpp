#include "kernels/pack.hpp"

#include <array>
#include <cstring>
#include <utility>

#include "kernels/block.hpp"

namespace specllama::kernels {

namespace {

// Packs bits of `count` steps into one lane, those of the first step lowest: `width` bits of each byte, from bit `from`
// on.
template <int first, int stride, int count, int from, int width>
uint32_t lane(const uint32_t (&steps)[8]) {
    constexpr uint32_t mask = 0x01010101U * ((1U << width) - 1);
    uint32_t packed = 0;
    for (int i = 0; i < count; ++i) {
        packed |= ((steps[first + stride * i] >> from) & mask) << (width * i);
    }
    return packed;
}

void put(uint8_t * panel, int line, int row, uint32_t value) {
    std::memcpy(panel + 64 * line + kStep * row, &value, sizeof value);
}

// Packs the codes of 32 values of one row.
template <QuantizedType type>
void pack_codes(const uint8_t * codes, int row, uint8_t * panel) {
    constexpr Layout layout = layout_of(type);
    constexpr int low = layout.low_bits;
    uint32_t steps[8];
    std::memcpy(steps, codes, sizeof steps);
    if constexpr (low == 8) {
        for (int step = 0; step < 8; ++step) {
            put(panel, step, row, steps[step]);
        }
    } else if constexpr (low == 4) {
        put(panel, 0, row, lane<0, 4, 2, 0, 4>(steps));
        put(panel, 1, row, lane<1, 4, 2, 0, 4>(steps));
        put(panel, 2, row, lane<2, 4, 2, 0, 4>(steps));
        put(panel, 3, row, lane<3, 4, 2, 0, 4>(steps));
    } else {
        put(panel, 0, row, lane<0, 1, 4, 0, 2>(steps));
        put(panel, 1, row, lane<4, 1, 4, 0, 2>(steps));
    }
    if constexpr (layout.high_bits == 1) {
        put(panel, low, row, lane<0, 1, 8, low, 1>(steps));
    } else if constexpr (layout.high_bits == 2) {
        put(panel, low, row, lane<0, 1, 4, low, 2>(steps));
        put(panel, low + 1, row, lane<4, 1, 4, low, 2>(steps));
    }
}

template <QuantizedType type>
void pack_scales(const Block & block, int row, uint8_t * panel) {
    constexpr Layout layout = layout_of(type);
    std::memcpy(panel + layout.d_at() + 2 * row, &block.d, 2);
    if constexpr (layout.has_minimum()) {
        std::memcpy(panel + layout.minimum_at() + 2 * row, &block.dmin, 2);
    }
    for (int i = 0; i < layout.num_scales(); ++i) {
        const int at = 2 * kPanelRows * (i / 2) + 2 * row + i % 2;
        auto scale = static_cast<uint8_t>(block.scales[i]);
        if constexpr (layout.packed) {
            scale = static_cast<uint8_t>(scale | (block.minima[i] << 4));
        } else if constexpr (layout.kind == Offset::minimum) {
            panel[layout.minima_at() + at] = block.minima[i];
        }
        panel[layout.scales_at() + at] = scale;
    }
}

// Returns the codes of a block, and writes its other parts to `block`. The codes of Q8_0 are used as they stand in the
// file.
template <QuantizedType type>
const uint8_t * take_codes(const uint8_t * source, Block & block) {
    if constexpr (type == QuantizedType::q8_0) {
        std::memcpy(&block.d, source, 2);
        return source + 2;
    }
    take_apart(type, source, block);
    return block.codes;
}

template <QuantizedType type>
void pack_panels(const uint8_t * rows, int64_t num_rows, int64_t columns, int64_t first, int64_t last,
                 uint8_t * panels) {
    constexpr Layout layout = layout_of(type);
    const int64_t num_blocks = columns / layout.values;
    Block block;
    for (int64_t panel = first; panel < last; ++panel) {
        uint8_t * out = panels + panel * num_blocks * layout.panel_bytes();
        for (int64_t b = 0; b < num_blocks; ++b, out += layout.panel_bytes()) {
            for (int row = 0; row < kPanelRows; ++row) {
                const int64_t at = kPanelRows * panel + row;
                const uint8_t * codes = block.codes;
                if (at < num_rows) {
                    codes = take_codes<type>(rows + (at * num_blocks + b) * layout.block_bytes, block);
                } else {
                    block = Block{};
                }
                for (int part = 0; part < layout.values / 32; ++part) {
                    constexpr int bytes = 64 * (layout.low_bits + layout.high_bits);
                    pack_codes<type>(codes + 32 * part, row, out + bytes * part);
                }
                pack_scales<type>(block, row, out);
            }
        }
    }
}

template <int... index>
constexpr auto table_of(std::integer_sequence<int, index...> /*all*/) {
    using Pack = void (*)(const uint8_t *, int64_t, int64_t, int64_t, int64_t, uint8_t *);
    return std::array<Pack, sizeof...(index)>{pack_panels<static_cast<QuantizedType>(index)>...};
}

}  // namespace

void pack(QuantizedType type, const uint8_t * rows, int64_t num_rows, int64_t columns, int64_t first, int64_t last,
          uint8_t * panels) {
    static constexpr auto kTable = table_of(std::make_integer_sequence<int, kNumTypes>{});
    kTable[static_cast<std::size_t>(type)](rows, num_rows, columns, first, last, panels);
}

}  // namespace specllama::kernels
