// The products with AVX2. Bytes are multiplied in pairs, and the sum of a pair fits into 16 bits. So several sums are
// added before they are widened.
#include "kernels/avx2_lanes.hpp"

namespace specllama::kernels {

namespace {

struct Avx2 : Avx2Lanes {
    // How many sums of dot_pairs may be added in 16 bits. largest: the largest code.
    static constexpr int room(int largest) { return 32767 / (2 * 127 * largest); }
    // Whether the sums of 32 values fit into 16 bits, and have the same scale.
    static constexpr bool has_long_sums(const Layout & layout) {
        return layout.span != 16 && room(layout.largest()) >= 8;
    }
    // How many columns are multiplied at once. The sums of four columns fit into registers. Where sums are short, the
    // codes stay in registers instead, and eight columns share the work of unpacking them.
    static constexpr int columns_at_once(const Layout & layout) {
        return layout.is_signed || has_long_sums(layout) ? 4 : 8;
    }

    // Signed values are multiplied as words, because vpmaddubsw saturates where both factors have eight bits.
    static constexpr bool kSignedProducts = true;
    static constexpr bool kWideSigned = true;

    template <bool is_fp4>
    static Lanes look_up(Lanes codes) {
        return shuffle(is_fp4 ? fp4_values() : iq4_values(), codes);
    }

    // Repeats the scale `which` of each pair, so that it stands in both words.
    static Lanes twice(Lanes pairs, int which) {
        const __m256i first = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,  //
                                               0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
        const __m256i second = _mm256_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15,  //
                                                2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
        return shuffle(pairs, both(which == 0 ? first : second));
    }

    // The sums of two products of bytes each.
    static Lanes dot_pairs(Lanes codes, __m256i x) {
        return {_mm256_maddubs_epi16(codes.low, x), _mm256_maddubs_epi16(codes.high, x)};
    }
    using Avx2Lanes::dot_words;
    static Lanes add_dot_words(Lanes sum, Lanes a, Lanes b) { return add(sum, dot_words(a, b)); }
    static Lanes dot_words(Lanes a, __m256i b) { return {_mm256_madd_epi16(a.low, b), _mm256_madd_epi16(a.high, b)}; }
    static Lanes add_words(Lanes a, Lanes b) {
        return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)};
    }

    // Adds the products of 16 values, in four steps, step by step for some columns. fresh: whether the sums in 16 bits
    // begin here; done: whether these sums end here.
    template <int type, int columns, int width>
    static void add_by_steps(const uint8_t * codes, int half, const uint8_t * tile, bool fresh, bool done, Lanes scale,
                             Lanes (&part)[width], Lanes (&total)[width]) {
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            const Lanes code = step_of<Avx2, type>(codes, half, index);
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                const __m256i x = spread_step(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                const Lanes pair = dot_pairs(code, x);
                part[c] = fresh && index == 0 ? pair : add_words(part[c], pair);
                keep(part[c]);
                if (done && index == 3) {
                    total[c] = add(total[c], dot_words(part[c], scale));
                }
            }
        }
    }

    // Adds the products of 16 values, column by column. The sums in 16 bits end here; the codes stay in registers.
    template <int type, int columns, int width>
    static void add_by_columns(const uint8_t * codes, int half, const uint8_t * tile, Lanes scale,
                               Lanes (&total)[width]) {
        constexpr int most = room(layout_of(static_cast<QuantizedType>(type)).largest());
        static_assert(most >= 2);
        constexpr int together = most < 4 && width <= 4 ? 2 : 4;  // with few columns all sums stay in registers, too
        SPECLLAMA_UNROLL
        for (int first = 0; first < 4; first += together) {
            Lanes code[together];
            SPECLLAMA_UNROLL
            for (int index = 0; index < together; ++index) {
                code[index] = step_of<Avx2, type>(codes, half, first + index);
                keep(code[index]);
            }
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                Lanes part = spread(int32_t{0});
                SPECLLAMA_UNROLL
                for (int index = 0; index < together; ++index) {
                    const __m256i x = spread_step(int_at(tile + 4 * ((4 * half + first + index) * columns + c)));
                    const Lanes pair = dot_pairs(code[index], x);
                    part = index == 0 || (most < 4 && index == 2) ? pair : add_words(part, pair);
                    if (index == together - 1 || (most < 4 && index == 1)) {
                        total[c] = add(total[c], dot_words(part, scale));
                        keep(total[c]);
                    }
                }
            }
        }
    }

    template <int type, int columns, int width>
    static void weigh_unsigned(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                               Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        Lanes total[width];
        begin<Avx2, type, columns>(sums, 0, total);
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const uint8_t * codes = panel + 64 * (layout.low_bits + layout.high_bits) * sub;
            const uint8_t * x = tile + 32 * columns * sub;
            Lanes scale[2] = {both(_mm256_set1_epi16(1)), both(_mm256_set1_epi16(1))};
            if constexpr (layout.span == 16) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub);
                scale[0] = twice(pairs, 0);
                scale[1] = twice(pairs, 1);
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub / 2);
                scale[0] = scale[1] = sub % 2 == 0 ? twice(pairs, 0) : twice(pairs, 1);
            }
            if constexpr (has_long_sums(layout)) {
                Lanes part[width];
                add_by_steps<type, columns>(codes, 0, x, true, false, scale[0], part, total);
                add_by_steps<type, columns>(codes, 1, x, false, true, scale[1], part, total);
            } else {
                add_by_columns<type, columns>(codes, 0, x, scale[0], total);
                add_by_columns<type, columns>(codes, 1, x, scale[1], total);
            }
        }
        for (int c = 0; c < width; ++c) {
            weighted[c] = to_floats(total[c]);
        }
    }

    template <int type, int columns, int width>
    static void weigh_signed(const uint8_t * panel, bool fetches, const uint8_t * tile, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        for (int c = 0; c < width; ++c) {
            weighted[c] = spread(0.0F);
        }
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const uint8_t * codes = panel + 64 * layout.low_bits * sub;
            const uint8_t * x = tile + 64 * columns * sub;
            Lanes total[width];
            SPECLLAMA_UNROLL
            for (int step = 0; step < 8; ++step) {
                const Lanes bytes = step_of<Avx2, type>(codes, step / 4, step % 4);
                const Lanes even = {_mm256_srai_epi16(_mm256_slli_epi16(bytes.low, 8), 8),
                                    _mm256_srai_epi16(_mm256_slli_epi16(bytes.high, 8), 8)};
                const Lanes odd = {_mm256_srai_epi16(bytes.low, 8), _mm256_srai_epi16(bytes.high, 8)};
                SPECLLAMA_UNROLL
                for (int c = 0; c < width; ++c) {
                    const Lanes first = dot_words(even, spread_step(int_at(x + 4 * (2 * step * columns + c))));
                    const Lanes second = dot_words(odd, spread_step(int_at(x + 4 * ((2 * step + 1) * columns + c))));
                    total[c] = step == 0 ? first : add(total[c], first);
                    keep(total[c]);
                    total[c] = add(total[c], second);
                    keep(total[c]);
                }
            }
            if constexpr (layout.span == 0) {
                for (int c = 0; c < width; ++c) {
                    weighted[c] = to_floats(total[c]);
                }
            } else {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub / 2);
                const Floats scale = to_floats(sub % 2 == 0 ? word(pairs, 0) : word(pairs, 1));
                for (int c = 0; c < width; ++c) {
                    weighted[c] = add_product(to_floats(total[c]), scale, weighted[c]);
                }
            }
        }
    }

    // Sets `weighted` to the products of one block with some columns, times the scales within the block.
    //
    // fetches: whether to prefetch weights that come later; tile, sums: where the codes and the sums of the first of
    // these columns are.
    template <int type, int columns, int width>
    static void weigh(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                      Floats (&weighted)[width]) {
        if constexpr (layout_of(static_cast<QuantizedType>(type)).is_signed) {
            weigh_signed<type, columns>(panel, fetches, tile, weighted);
        } else {
            weigh_unsigned<type, columns>(panel, fetches, tile, sums, weighted);
        }
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<Avx2, type, columns>;

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#include "kernels/table.inc"

extern const InstructionSet kAvx2;
const InstructionSet kAvx2 = {"AVX2", true, kMostColumns, quantize_x86, SPECLLAMA_TABLE, kFloatKernels<Avx2Floats>};

}  // namespace specllama::kernels
