// The products in plain C++, with which the other instruction sets are compared.
#include <cmath>
#include <cstring>

#if defined(_MSC_VER) && !defined(__clang__)
#define __builtin_inff __builtin_huge_valf  // as Visual C++ names it
#endif

#include "kernels/block.hpp"
#include "kernels/float_lanes.hpp"
#include "kernels/grids.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama::kernels {

namespace {

template <class T>
T read(const uint8_t * at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

int bits(const uint8_t * panel, int line, int row, int byte, int from, int width) {
    return (panel[64 * line + kStep * row + byte] >> from) & ((1 << width) - 1);
}

// The digit of base 3 that stands for the value `index` of a block.
int third_at(const uint8_t * panel, int row, int index) {
    const int step = index / kStep;
    int left = panel[64 * (step / kThirds) + kStep * row + index % kStep];
    for (int digit = 0; digit < step % kThirds; ++digit) {
        left = left * 3 & 0xFF;
    }
    return left * 3 >> 8;
}

// The number of signs and other bits of 32 values of a row with a grid.
uint32_t signs_at(const Layout & layout, const uint8_t * lines, int row) {
    return read<uint32_t>(lines + 64 * (32 / layout.entry / 4) + kStep * row);
}

// The value `index` of a block of a row with a grid.
int grid_value_at(QuantizedType type, const uint8_t * panel, int row, int index) {
    const Layout layout = layout_of(type);
    const int part = index / 32;
    const int which = index % 32 / layout.entry;  // the entry
    const int eight = index % 32 / 8;
    const uint8_t * lines = panel + layout.part_bytes() * part;
    const uint32_t coded = signs_at(layout, lines, row);
    int entry = lines[64 * (which / 4) + kStep * row + which % 4];
    bool is_negative = (coded >> (index % 32) & 1) != 0;
    if (layout.whole_signs) {
        const int bits = layout.index_bits - 8;
        const int high = panel[layout.high_at() + kPanelRows * part + row];
        entry |= (high >> (bits * which) & ((1 << bits) - 1)) << 8;
    } else {
        const uint32_t seven = coded >> (7 * eight) & 127;
        bool is_odd = false;
        for (uint32_t left = seven; left != 0; left &= left - 1) {
            is_odd = !is_odd;
        }
        is_negative = index % 8 == 7 ? is_odd : (seven >> (index % 8) & 1) != 0;
        entry |= layout.index_bits == 9 ? static_cast<int>(coded >> (28 + eight) & 1) << 8 : 0;
    }
    const uint32_t four = grid_of(type)[entry * (layout.entry / 4) + index % layout.entry / 4];
    const auto magnitude = static_cast<int>(four >> (8 * (index % 4)) & 0xFF);
    return is_negative ? -magnitude : magnitude;
}

// The value `index` of a block of a row, before its offset is subtracted.
int value_at(QuantizedType type, const uint8_t * block, int row, int index) {
    const Layout layout = layout_of(type);
    if (layout.is_grid()) {
        return grid_value_at(type, block, row, index);
    } else if (layout.codes == Codes::thirds) {
        return third_at(block, row, index);
    }
    const uint8_t * panel = block + layout.part_bytes() * (index / 32);
    const int step = index % 32 / kStep;
    const int byte = index % kStep;
    int code = 0;
    if (layout.low_bits == 8) {
        return static_cast<int8_t>(panel[64 * step + kStep * row + byte]);
    } else if (layout.low_bits == 4) {
        code = bits(panel, step % 4, row, byte, 4 * (step / 4), 4);
    } else if (layout.low_bits == 2) {
        code = bits(panel, step / 4, row, byte, 2 * (step % 4), 2);
    } else {
        code = 2 * bits(panel, 0, row, byte, step, 1);
    }
    if (layout.high_bits == 1) {
        code |= bits(panel, layout.low_bits, row, byte, step, 1) << layout.low_bits;
    } else if (layout.high_bits == 2) {
        code |= bits(panel, layout.low_bits + step / 4, row, byte, 2 * (step % 4), 2) << layout.low_bits;
    }
    return layout.is_table() ? (layout.codes == Codes::fp4 ? kFp4Values : kIq4Values)[code] : code;
}

// The scale of the span `index`, and its minimum. The minimum of a type without minima is the scale.
struct ScaleAndMinimum {
    float scale;
    int minimum;
};

ScaleAndMinimum scale_at(const Layout & layout, const uint8_t * panel, int row, int index) {
    if (layout.scales == Scales::in_signs) {
        const uint32_t coded = signs_at(layout, panel + layout.part_bytes() * index, row);
        return {scale_of_span(layout.scales, static_cast<int8_t>(coded >> 28)), 0};
    }
    if (layout.scales == Scales::nibbles) {
        const int two = panel[layout.scales_at() + kPanelRows * (index / 2) + row];
        return {scale_of_span(layout.scales, static_cast<int8_t>(two >> (4 * (index % 2)) & 15)), 0};
    }
    if (layout.scales == Scales::float8) {
        return {scale_of_span(layout.scales, static_cast<int8_t>(panel[layout.scales_at() + kPanelRows * index + row])),
                0};
    }
    const int at = 2 * kPanelRows * (index / 2) + 2 * row + index % 2;
    const auto scale = static_cast<int8_t>(panel[layout.scales_at() + at]);
    if (layout.scales == Scales::with_minimum) {
        return {static_cast<float>(scale & 15), panel[layout.scales_at() + at] >> 4};
    }
    const int minimum = layout.kind == Offset::minimum ? panel[layout.minima_at() + at] : scale;
    return {static_cast<float>(scale), minimum};
}

// The scale d of a row's block.
float block_scale_at(const Layout & layout, const uint8_t * panel, int row) {
    const uint8_t * at = panel + layout.d_at() + layout.d_bytes() * row;
    return layout.codes == Codes::expanded ? read<float>(at) : scale_of(layout, read<uint16_t>(at));
}

// Whether the offset is subtracted from the products of each span, as integers.
constexpr bool lowers_spans(const Layout & layout) { return layout.span == 0 || layout.scales == Scales::float8; }

// The product of one block of one row with one column, without the column's scale if it has only one.
float product(QuantizedType type, const uint8_t * panel, const uint8_t * tile, int width, int row, int column) {
    const Layout layout = layout_of(type);
    const TileShape shape = tile_shape(layout, false);
    const uint8_t * sums = tile + shape.code_bytes * width;
    const uint8_t * groups = sums + shape.sum_bytes * width + 4 * column;
    const int span = layout.span == 0 ? layout.group : layout.span;
    float total = 0.0F;
    // The sum of scale * dot. AVX2 adds integers instead, which is the same as long as the sum fits into 24 bits.
    float weighted = 0.0F;
    int32_t lowered = 0;  // the sum of minimum (or scale) * the sum of a span's codes
    for (int begin = 0; begin < layout.values; begin += span) {
        int32_t dot = 0;
        for (int i = begin; i < begin + span; ++i) {
            const auto code = static_cast<int8_t>(tile[4 * ((i / kStep) * width + column) + i % kStep]);
            dot += value_at(type, panel, row, i) * code;
        }
        const int index = begin / span;
        const int32_t sum = layout.span == 0
                                ? read<int32_t>(sums + 4 * (index * width + column))
                                : read<int16_t>(sums + 4 * ((index / 2) * width + column) + 2 * (index % 2));
        if (lowers_spans(layout) && !layout.has_minimum()) {
            dot -= layout.offset * sum;
        }
        if (layout.span == 0) {
            weighted = static_cast<float>(dot);
            lowered = sum;
        } else {
            const ScaleAndMinimum found = scale_at(layout, panel, row, index);
            weighted = std::fma(static_cast<float>(dot), found.scale, weighted);
            lowered += found.minimum * sum;
        }
        if (layout.num_groups() > 1 && (begin + span) % layout.group == 0) {
            total = std::fma(weighted, read<float>(groups + 4 * (begin / layout.group) * width), total);
            weighted = 0.0F;
        }
    }
    if (layout.num_groups() > 1) {
        weighted = total;
    }
    const float d = layout.has_d() ? block_scale_at(layout, panel, row) : 1.0F;
    const auto low = static_cast<float>(lowered);
    if (layout.has_minimum()) {
        const float dmin = half_to_float(read<uint16_t>(panel + layout.minimum_at() + 2 * row));
        return std::fma(layout.kind == Offset::minimum ? -dmin : dmin, low, d * weighted);
    }
    const bool lowers = layout.offset != 0 && !lowers_spans(layout);
    return d * (lowers ? std::fma(static_cast<float>(-layout.offset), low, weighted) : weighted);
}

// Multiplies weights that are floats, one value after the other.
float add_floats(const Layout & layout, const uint8_t * panel, const uint8_t * tile, int width, int row, int column,
                 float sum) {
    for (int i = 0; i < layout.values; ++i) {
        const float weight = float_at(layout, panel + 2 * (kPanelRows * i + row));
        sum = std::fma(weight, read<float>(tile + 4 * (i * width + column)), sum);
    }
    return sum;
}

template <int type, int width>
void multiply(const uint8_t * panel, int64_t num_blocks, const uint8_t * tile, float * out, int64_t stride) {
    constexpr auto kType = static_cast<QuantizedType>(type);
    constexpr Layout layout = layout_of(kType);
    const TileShape shape = tile_shape(layout, false);
    for (int column = 0; column < width; ++column) {
        for (int row = 0; row < kPanelRows; ++row) {
            float sum = 0.0F;
            for (int64_t b = 0; b < num_blocks; ++b) {
                const uint8_t * weights = panel + b * layout.panel_bytes();
                const uint8_t * block = tile + b * width * shape.column_bytes();
                if (layout.is_float()) {
                    sum = add_floats(layout, weights, block, width, row, column, sum);
                    continue;
                }
                const float found = product(kType, weights, block, width, row, column);
                const uint8_t * d = block + (shape.code_bytes + shape.sum_bytes) * width + 4 * column;
                sum = layout.num_groups() > 1 ? found + sum : std::fma(found, read<float>(d), sum);
            }
            out[column * stride + row] = sum;
        }
    }
}

template <int type>
void expand(const uint8_t * panel, int64_t num_blocks, uint8_t * out) {
    constexpr auto kType = static_cast<QuantizedType>(type);
    constexpr Layout from = layout_of(kType);
    constexpr Layout to = layout_of(expanded(kType));
    for (int64_t b = 0; b < num_blocks; ++b, panel += from.panel_bytes(), out += to.panel_bytes()) {
        for (int row = 0; row < kPanelRows; ++row) {
            for (int i = 0; i < from.values; ++i) {
                out[64 * (i / kStep) + kStep * row + i % kStep] = static_cast<uint8_t>(value_at(kType, panel, row, i));
            }
            const float d = block_scale_at(from, panel, row);
            std::memcpy(out + to.d_at() + 4 * row, &d, sizeof d);
            for (int i = 0; i < from.num_scales(); ++i) {
                const auto scale = static_cast<uint8_t>(scale_at(from, panel, row, i).scale);
                out[to.scales_at() + 2 * kPanelRows * (i / 2) + 2 * row + i % 2] = scale;
            }
        }
    }
}

template <int type>
constexpr Expand kExpand = layout_of(static_cast<QuantizedType>(type)).is_grid() ? expand<type> : nullptr;

struct PlainFloats {
    static constexpr int kRows = 1;
    static constexpr int kColumns = 1;
    struct Floats {
        float at[kFloatLanes];
    };

    template <class Function>
    static Floats each(Function function) {
        Floats made{};
        for (int i = 0; i < kFloatLanes; ++i) {
            made.at[i] = function(i);
        }
        return made;
    }
    static Floats spread(float value) {
        return each([&](int /*i*/) { return value; });
    }
    static Floats load(const float * at) {
        return each([&](int i) { return at[i]; });
    }
    static Floats load_halves(const uint8_t * at) {
        return each([&](int i) { return half_to_float(read<uint16_t>(at + 2 * i)); });
    }
    static Floats spread_half(const uint8_t * at) { return spread(half_to_float(read<uint16_t>(at))); }
    static Floats load_bytes(const uint8_t * at) {
        return each([&](int i) { return static_cast<float>(static_cast<int8_t>(at[i])); });
    }
    static Floats load_nibbles(const uint8_t * at, bool high, const int8_t (&values)[16]) {
        return each([&](int i) { return static_cast<float>(values[high ? at[i] >> 4 : at[i] & 15]); });
    }
    static void store(float * at, const Floats & a) { std::memcpy(at, a.at, sizeof a.at); }
    static void stream(float * at, const Floats & a) { store(at, a); }
    static void finish_streams() {}
    static Floats add(const Floats & a, const Floats & b) {
        return each([&](int i) { return a.at[i] + b.at[i]; });
    }
    static Floats multiply(const Floats & a, const Floats & b) {
        return each([&](int i) { return a.at[i] * b.at[i]; });
    }
    static Floats divide(const Floats & a, const Floats & b) {
        return each([&](int i) { return a.at[i] / b.at[i]; });
    }
    static Floats add_product(const Floats & a, const Floats & b, const Floats & c) {
        return each([&](int i) { return std::fma(a.at[i], b.at[i], c.at[i]); });
    }
    static Floats larger(const Floats & a, const Floats & b) {
        return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
    }
    static Floats nearest(const Floats & a) {
        return each([&](int i) { return std::nearbyint(a.at[i]); });
    }
    static Floats times_power_of_two(const Floats & a, const Floats & n) {
        return each([&](int i) { return std::ldexp(a.at[i], static_cast<int>(n.at[i])); });
    }
    static Floats zero_where_below(const Floats & x, const Floats & least, const Floats & a) {
        return each([&](int i) { return x.at[i] >= least.at[i] ? a.at[i] : 0.0F; });
    }
    static float first(const Floats & a) { return a.at[0]; }
    // Folds the numbers as the other sets fold registers: both halves into one, until one number is left.
    template <class Function>
    static float fold(Floats a, Function function) {
        for (int count = kFloatLanes / 2; count > 0; count /= 2) {
            for (int i = 0; i < count; ++i) {
                a.at[i] = function(a.at[i], a.at[i + count]);
            }
        }
        return a.at[0];
    }
    static float total(const Floats & a) {
        return fold(a, [](float x, float y) { return x + y; });
    }
    static void store_totals(const Floats (&a)[kRows], float * at) { *at = total(a[0]); }
    static float largest(const Floats & a) {
        return fold(a, [](float x, float y) { return x > y ? x : y; });
    }
};

}  // namespace

#define SPECLLAMA_MULTIPLY multiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

const InstructionSet & plain_set() {
    static const InstructionSet set = {"plain",
                                       false,
                                       kMostColumns,
                                       quantize_plain,
                                       SPECLLAMA_TABLE,
                                       SPECLLAMA_EXPANSIONS,
                                       kFloatKernels<PlainFloats>};
    return set;
}

}  // namespace specllama::kernels
