// The products with NEON's products of matrices of bytes (FEAT_I8MM: Apple's M2, Cortex-X2, Neoverse V1 and later). One
// instruction multiplies two rows with two columns, over eight values: twice as much as a dot product.
#include "kernels/byte_dots.hpp"
#include "kernels/neon_lanes.hpp"

namespace specllama::kernels {

namespace {

struct NeonPairs : ByteDots<NeonLanes> {
    using Base = ByteDots<NeonLanes>;

    // The sums of all rows with a pair of columns. A register of `first` has two rows of each four, one of `second` the
    // other two: {row, column}, {row, next column}, {next row, column}, {next row, next column}.
    struct PairSums {
        Lanes first;
        Lanes second;
    };

    // Two steps of two columns that stand side by side, as the instruction takes them: a column's eight values
    // together.
    static int8x16_t two_columns(const uint8_t * step, int64_t next_step) {
        const int32x2_t one = vreinterpret_s32_u8(vld1_u8(step));
        const int32x2_t other = vreinterpret_s32_u8(vld1_u8(step + next_step));
        const int32x2x2_t columns = vzip_s32(one, other);
        return vreinterpretq_s8_s32(vcombine_s32(columns.val[0], columns.val[1]));
    }

    static int32x4_t multiplied(int32x4_t sum, int32x4_t rows, int8x16_t columns) {
        return vmmlaq_s32(sum, vreinterpretq_s8_s32(rows), columns);
    }

    // Adds the products of 16 values to the sums of pairs of columns, and of the last one if their number is odd.
    template <int type, int columns, int width>
    static void add_half_of_pairs(const uint8_t * codes, int half, const uint8_t * tile, PairSums (&sums)[width / 2],
                                  Lanes & last) {
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; index += 2) {
            const Lanes one = Base::factors_of_step<type>(codes, half, index);
            const Lanes other = Base::factors_of_step<type>(codes, half, index + 1);
            const Lanes first = lanes([&](int i) { return vzip1q_s32(one.at[i], other.at[i]); });
            const Lanes second = lanes([&](int i) { return vzip2q_s32(one.at[i], other.at[i]); });
            const uint8_t * step = tile + 4 * (4 * half + index) * columns;
            SPECLLAMA_UNROLL
            for (int pair = 0; pair < width / 2; ++pair) {
                const int8x16_t x = two_columns(step + 8 * pair, 4 * columns);
                sums[pair].first = lanes([&](int i) { return multiplied(sums[pair].first.at[i], first.at[i], x); });
                sums[pair].second = lanes([&](int i) { return multiplied(sums[pair].second.at[i], second.at[i], x); });
            }
            if constexpr (width % 2 == 1) {
                last = dot_bytes(last, one, spread_step(int_at(step + 4 * (width - 1))));
                last = dot_bytes(last, other, spread_step(int_at(step + 4 * (columns + width - 1))));
            }
        }
    }

    // The sums of some columns with the 16 or 32 values that begin at `half`.
    template <int type, int columns, int width>
    static void dots_of(const uint8_t * codes, int half, int halves, const uint8_t * tile, Lanes (&dot)[width]) {
        PairSums sums[width / 2];
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < width / 2; ++pair) {
            sums[pair] = {spread(int32_t{0}), spread(int32_t{0})};
        }
        Lanes last = spread(int32_t{0});
        SPECLLAMA_UNROLL
        for (int i = 0; i < halves; ++i) {
            add_half_of_pairs<type, columns, width>(codes, half + i, tile, sums, last);
        }
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < width / 2; ++pair) {
            const PairSums & both = sums[pair];
            dot[2 * pair] = lanes([&](int i) { return vuzp1q_s32(both.first.at[i], both.second.at[i]); });
            dot[2 * pair + 1] = lanes([&](int i) { return vuzp2q_s32(both.first.at[i], both.second.at[i]); });
        }
        if constexpr (width % 2 == 1) {
            dot[width - 1] = last;
        }
    }

    // Does what ByteDots::weigh does.
    template <int type, int columns, int width>
    static void weigh(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                      Floats (&weighted)[width]) {
        if constexpr (width == 1) {
            Base::weigh<type, columns, width>(panel, fetches, tile, sums, weighted);
        } else {
            weigh_pairs<type, columns, width>(panel, fetches, tile, sums, weighted);
        }
    }

    template <int type, int columns, int width>
    static void weigh_pairs(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                            Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        for (int c = 0; c < width; ++c) {
            weighted[c] = spread(0.0F);
        }
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const uint8_t * codes = panel + 64 * (layout.low_bits + layout.high_bits) * sub;
            const uint8_t * x = tile + 32 * columns * sub;
            Lanes dot[width];
            if constexpr (layout.span == 16) {
                const Lanes pairs = scales_of<NeonPairs, type>(panel, sub);
                for (int half = 0; half < 2; ++half) {
                    dots_of<type, columns>(codes, half, 1, x, dot);
                    add_scaled(dot, to_floats(word(pairs, half)), weighted);
                }
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<NeonPairs, type>(panel, sub / 2);
                dots_of<type, columns>(codes, 0, 2, x, dot);
                add_scaled(dot, to_floats(word(pairs, sub % 2)), weighted);
            } else {
                Lanes moved[width];
                begin<NeonPairs, type, columns>(sums, sub, moved);
                dots_of<type, columns>(codes, 0, 2, x, dot);
                for (int c = 0; c < width; ++c) {
                    weighted[c] = to_floats(add(dot[c], moved[c]));
                }
            }
        }
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<NeonPairs, type, columns>;

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#include "kernels/table.inc"

extern const InstructionSet kNeonI8mm;
const InstructionSet kNeonI8mm = {"NEON i8mm",   false,           kMostColumns,
                                  quantize_neon, SPECLLAMA_TABLE, kFloatKernels<NeonFloats>};

}  // namespace specllama::kernels
