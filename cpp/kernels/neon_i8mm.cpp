// The products with NEON's products of matrices of bytes (FEAT_I8MM: Apple's M2, Cortex-X2, Neoverse V1 and later). One
// instruction multiplies two rows with two columns, over eight values: twice as much as a dot product.
#include "kernels/byte_dots.hpp"
#include "kernels/neon_lanes.hpp"

namespace specllama::kernels {

namespace {

template <class Rows>
struct NeonPairs : StepDots<Rows> {
    using Base = StepDots<Rows>;
    using Rows::add;
    using Rows::dot_bytes;
    using Rows::lanes;
    using Rows::spread;
    using Rows::spread_step;
    using typename Rows::Lanes;

    static constexpr bool kHoldsAllSums = true;

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

    // Adds the products of two steps to the sums of pairs of columns.
    template <int columns, int pairs>
    static void add_two_steps(const Lanes & one, const Lanes & other, const uint8_t * step, PairSums (&sums)[pairs]) {
        const Lanes first = lanes([&](int i) { return vzip1q_s32(one.at[i], other.at[i]); });
        const Lanes second = lanes([&](int i) { return vzip2q_s32(one.at[i], other.at[i]); });
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < pairs; ++pair) {
            const int8x16_t x = two_columns(step + 8 * pair, 4 * columns);
            sums[pair].first = lanes([&](int i) { return multiplied(sums[pair].first.at[i], first.at[i], x); });
            sums[pair].second = lanes([&](int i) { return multiplied(sums[pair].second.at[i], second.at[i], x); });
        }
    }

    // Does what StepDots::add_pairs does. The last column is by itself if their number is odd.
    template <int type, int columns, int count, int width, class Values>
    static void add_pairs(const Values & part, int first, const uint8_t * tile, Lanes (&dot)[width]) {
        if constexpr (width == 1) {
            Base::template add_pairs<type, columns, count>(part, first, tile, dot);
        } else {
            add_pairs_of_columns<type, columns, count>(part, first, tile, dot);
        }
    }

    template <int type, int columns, int count, int width, class Values>
    static void add_pairs_of_columns(const Values & part, int first, const uint8_t * tile, Lanes (&dot)[width]) {
        PairSums sums[width / 2];
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < width / 2; ++pair) {
            sums[pair] = {spread(int32_t{0}), spread(int32_t{0})};
        }
        SPECLLAMA_UNROLL
        for (int i = 0; i < count; ++i) {
            const int pair = first + i;
            Lanes one = {};
            Lanes other = {};
            Base::template two_factors<type>(part, pair, one, other);
            const uint8_t * step = tile + 8 * pair * columns;
            add_two_steps<columns>(one, other, step, sums);
            if constexpr (width % 2 == 1) {
                dot[width - 1] = dot_bytes(dot[width - 1], one, spread_step(int_at(step + 4 * (width - 1))));
                dot[width - 1] =
                    dot_bytes(dot[width - 1], other, spread_step(int_at(step + 4 * (columns + width - 1))));
            }
        }
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < width / 2; ++pair) {
            const PairSums & both = sums[pair];
            const Lanes left = lanes([&](int i) { return vuzp1q_s32(both.first.at[i], both.second.at[i]); });
            const Lanes right = lanes([&](int i) { return vuzp2q_s32(both.first.at[i], both.second.at[i]); });
            dot[2 * pair] = add(dot[2 * pair], left);
            dot[2 * pair + 1] = add(dot[2 * pair + 1], right);
        }
    }
};

template <class Rows>
using Dots = ByteDots<NeonPairs<Rows>>;

template <int type, int columns>
constexpr Multiply kMultiply = multiply_in_registers<Dots, type, columns>;

template <int type>
constexpr Expand kExpand = expansion<Dots<NeonLanes>, type>();

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

extern const InstructionSet kNeonI8mm;
const InstructionSet kNeonI8mm = {
    "NEON i8mm", false, kMostColumns, quantize_neon, SPECLLAMA_TABLE, SPECLLAMA_EXPANSIONS, kFloatKernels<NeonFloats>};

}  // namespace specllama::kernels
