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

// Packs digits of base 3 of one row: five steps in a lane (see kThirds).
void pack_thirds(const uint8_t * codes, int row, uint8_t * panel) {
    for (int line = 0; 4 * kThirds * line < 256; ++line) {
        uint32_t packed = 0;
        for (int byte = 0; byte < kStep; ++byte) {
            int number = 0;
            for (int digit = 0; digit < kThirds; ++digit) {
                const int at = kStep * (kThirds * line + digit) + byte;
                number = 3 * number + (at < 256 ? codes[at] : 0);
            }
            packed |= static_cast<uint32_t>((256 * number + 242) / 243) << (8 * byte);
        }
        put(panel, line, row, packed);
    }
}

// The coded signs of 32 values, and what else has a place there (see Layout).
template <QuantizedType type>
uint32_t coded_signs(const Block & block, int part) {
    constexpr Layout layout = layout_of(type);
    const uint32_t signs = block.signs[part];
    if constexpr (layout.whole_signs) {
        return signs;
    }
    uint32_t coded = 0;
    for (int i = 0; i < 4; ++i) {
        coded |= (signs >> (8 * i) & 127) << (7 * i);
        if constexpr (layout.index_bits == 9) {
            coded |= static_cast<uint32_t>(block.entries[4 * part + i] >> 8) << (28 + i);
        }
    }
    if constexpr (layout.scales == Scales::in_signs) {
        coded |= static_cast<uint32_t>(block.scales[part]) << 28;
    }
    return coded;
}

// Packs the indices and signs of a block of one row.
template <QuantizedType type>
void pack_grid(const Block & block, int row, uint8_t * panel) {
    constexpr Layout layout = layout_of(type);
    constexpr int entries = 32 / layout.entry;
    constexpr int high = layout.index_bits - 8;
    for (int part = 0; part < layout.values / 32; ++part) {
        const uint16_t * indices = block.entries + entries * part;
        uint8_t * lines = panel + layout.part_bytes() * part;
        int high_bits = 0;
        for (int i = 0; i < entries; ++i) {
            lines[64 * (i / 4) + kStep * row + i % 4] = static_cast<uint8_t>(indices[i]);
            high_bits |= indices[i] >> 8 << (high * i);
        }
        put(lines, entries / 4, row, coded_signs<type>(block, part));
        if constexpr (layout.whole_signs) {
            panel[layout.high_at() + kPanelRows * part + row] = static_cast<uint8_t>(high_bits);
        }
    }
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
    } else if constexpr (low == 2) {
        put(panel, 0, row, lane<0, 1, 4, 0, 2>(steps));
        put(panel, 1, row, lane<4, 1, 4, 0, 2>(steps));
    } else {
        put(panel, 0, row, lane<0, 1, 8, 0, 1>(steps));
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
    if constexpr (layout.has_d()) {
        std::memcpy(panel + layout.d_at() + 2 * row, &block.d, 2);
    }
    if constexpr (layout.has_minimum()) {
        std::memcpy(panel + layout.minimum_at() + 2 * row, &block.dmin, 2);
    }
    if constexpr (layout.scales == Scales::nibbles) {
        for (int i = 0; i < layout.num_scales(); i += 2) {
            panel[layout.scales_at() + kPanelRows * (i / 2) + row] =
                static_cast<uint8_t>(block.scales[i] | block.scales[i + 1] << 4);
        }
    } else if constexpr (layout.scales != Scales::in_signs) {
        for (int i = 0; i < layout.num_scales(); ++i) {
            const int at =
                layout.scales == Scales::float8 ? kPanelRows * i + row : 2 * kPanelRows * (i / 2) + 2 * row + i % 2;
            auto scale = static_cast<uint8_t>(block.scales[i]);
            if constexpr (layout.scales == Scales::with_minimum) {
                scale = static_cast<uint8_t>(scale | (block.minima[i] << 4));
            } else if constexpr (layout.kind == Offset::minimum) {
                panel[layout.minima_at() + at] = block.minima[i];
            }
            panel[layout.scales_at() + at] = scale;
        }
    }
}

// Packs 32 floats of one row, value by value.
void pack_floats(const uint8_t * values, int row, uint8_t * panel) {
    for (int i = 0; i < 32; ++i) {
        std::memcpy(panel + 2 * (kPanelRows * i + row), values + 2 * i, 2);
    }
}

// Returns the codes of a block, and writes its other parts to `block`. The codes of Q8_0 and of floats are used as they
// stand in the file.
template <QuantizedType type>
const uint8_t * take_codes(const uint8_t * source, Block & block) {
    if constexpr (type == QuantizedType::q8_0) {
        std::memcpy(&block.d, source, 2);
        return source + 2;
    } else if constexpr (layout_of(type).is_float()) {
        return source;
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
                if constexpr (layout.is_float()) {
                    pack_floats(codes, row, out);
                } else if constexpr (layout.is_grid()) {
                    pack_grid<type>(block, row, out);
                } else if constexpr (layout.codes == Codes::thirds) {
                    pack_thirds(codes, row, out);
                } else {
                    for (int part = 0; part < layout.values / 32; ++part) {
                        pack_codes<type>(codes + 32 * part, row, out + layout.part_bytes() * part);
                    }
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
