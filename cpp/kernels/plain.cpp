// The products in plain C++, with which the other instruction sets are compared.
#include <cmath>
#include <cstring>

#if defined(_MSC_VER) && !defined(__clang__)
#define __builtin_inff __builtin_huge_valf  // as Visual C++ names it
#endif

#include "kernels/block.hpp"
#include "kernels/float_lanes.hpp"
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

// The value `index` of 32 values of a row, before its offset is subtracted.
int value_at(const Layout & layout, const uint8_t * panel, int row, int index) {
    const int step = index / kStep;
    const int byte = index % kStep;
    int code = 0;
    if (layout.low_bits == 8) {
        return static_cast<int8_t>(panel[64 * step + kStep * row + byte]);
    } else if (layout.low_bits == 4) {
        code = bits(panel, step % 4, row, byte, 4 * (step / 4), 4);
    } else {
        code = bits(panel, step / 4, row, byte, 2 * (step % 4), 2);
    }
    if (layout.high_bits == 1) {
        code |= bits(panel, layout.low_bits, row, byte, step, 1) << layout.low_bits;
    } else if (layout.high_bits == 2) {
        code |= bits(panel, layout.low_bits + step / 4, row, byte, 2 * (step % 4), 2) << layout.low_bits;
    }
    return layout.is_table() ? (layout.codes == Codes::fp4 ? kFp4Values : kIq4Values)[code] : code;
}

// The product of one block of one row with one column.
float product(const Layout & layout, const uint8_t * panel, const uint8_t * tile, int width, int row, int column) {
    const TileShape shape = tile_shape(layout, false);
    const uint8_t * sums = tile + shape.code_bytes * width;
    const int span = layout.span == 0 ? 32 : layout.span;
    // The sum of scale * dot. AVX2 adds integers instead, which is the same as long as the sum fits into 24 bits.
    float weighted = 0.0F;
    int32_t lowered = 0;  // the sum of minimum (or scale) * the sum of a span's codes
    for (int begin = 0; begin < layout.values; begin += span) {
        int32_t dot = 0;
        for (int i = begin; i < begin + span; ++i) {
            const uint8_t * part = panel + 64 * (layout.low_bits + layout.high_bits) * (i / 32);
            const auto code = static_cast<int8_t>(tile[4 * ((i / kStep) * width + column) + i % kStep]);
            dot += value_at(layout, part, row, i % 32) * code;
        }
        if (layout.span == 0) {
            weighted = static_cast<float>(dot);
            lowered = read<int32_t>(sums + 4 * column);
            continue;
        }
        const int index = begin / span;
        const int at = 2 * kPanelRows * (index / 2) + 2 * row + index % 2;
        int scale = static_cast<int8_t>(panel[layout.scales_at() + at]);
        int minimum = scale;
        if (layout.packed) {
            minimum = panel[layout.scales_at() + at] >> 4;
            scale &= 15;
        } else if (layout.kind == Offset::minimum) {
            minimum = panel[layout.minima_at() + at];
        }
        weighted = std::fma(static_cast<float>(dot), static_cast<float>(scale), weighted);
        lowered += minimum * read<int16_t>(sums + 4 * ((index / 2) * width + column) + 2 * (index % 2));
    }
    const float d = scale_of(layout, read<uint16_t>(panel + layout.d_at() + 2 * row));
    const auto low = static_cast<float>(lowered);
    if (layout.has_minimum()) {
        const float dmin = half_to_float(read<uint16_t>(panel + layout.minimum_at() + 2 * row));
        return std::fma(layout.kind == Offset::minimum ? -dmin : dmin, low, d * weighted);
    }
    return d * (layout.offset == 0 ? weighted : std::fma(static_cast<float>(-layout.offset), low, weighted));
}

template <int type, int width>
void multiply(const uint8_t * panel, int64_t num_blocks, const uint8_t * tile, float * out, int64_t stride) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    const TileShape shape = tile_shape(layout, false);
    for (int column = 0; column < width; ++column) {
        for (int row = 0; row < kPanelRows; ++row) {
            float sum = 0.0F;
            for (int64_t b = 0; b < num_blocks; ++b) {
                const uint8_t * block = tile + b * width * shape.column_bytes();
                const auto d = read<float>(block + (shape.code_bytes + shape.sum_bytes) * width + 4 * column);
                sum = std::fma(product(layout, panel + b * layout.panel_bytes(), block, width, row, column), d, sum);
            }
            out[column * stride + row] = sum;
        }
    }
}

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
#include "kernels/table.inc"

const InstructionSet & plain_set() {
    static const InstructionSet set = {"plain",        false,           kMostColumns,
                                       quantize_plain, SPECLLAMA_TABLE, kFloatKernels<PlainFloats>};
    return set;
}

}  // namespace specllama::kernels
