// The products with AVX2. Bytes are multiplied in pairs, and the sum of a pair fits into 16 bits. So several sums are
// added before they are widened.
#include "kernels/avx2_lanes.hpp"
#include "kernels/grid_product.hpp"

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
        return layout.is_signed || has_long_sums(layout) || layout.codes == Codes::thirds ? 4 : 8;
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

    // Adds the products of 32 values that have the scales `scale`.
    template <int type, int columns, int width>
    static void add_values(const uint8_t * codes, const uint8_t * x, const Lanes (&scale)[2], Lanes (&total)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        if constexpr (has_long_sums(layout)) {
            Lanes part[width];
            add_by_steps<type, columns>(codes, 0, x, true, false, scale[0], part, total);
            add_by_steps<type, columns>(codes, 1, x, false, true, scale[1], part, total);
        } else {
            add_by_columns<type, columns>(codes, 0, x, scale[0], total);
            add_by_columns<type, columns>(codes, 1, x, scale[1], total);
        }
    }

    // Scales within a block are integers, and so are all sums within a group of values.
    template <int type, int columns, int width>
    static void weigh_unsigned(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                               const uint8_t * scales, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        constexpr int parts = layout.group / 32;  // of a group
        const Lanes one = both(_mm256_set1_epi16(1));
        Lanes total[width];
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            if (sub % parts == 0) {
                begin<Avx2, type, columns>(sums, sub / parts, total);
            }
            Lanes scale[2] = {one, one};
            if constexpr (layout.span == 16) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub);
                scale[0] = twice(pairs, 0);
                scale[1] = twice(pairs, 1);
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub / 2);
                scale[0] = scale[1] = sub % 2 == 0 ? twice(pairs, 0) : twice(pairs, 1);
            }
            add_values<type, columns>(panel + layout.part_bytes() * sub, tile + 32 * columns * sub, scale, total);
            if (layout.num_groups() > 1) {
                add_group<columns>(scales, sub / parts, total, weighted);
            }
        }
        if constexpr (layout.num_groups() == 1) {
            for (int c = 0; c < width; ++c) {
                weighted[c] = to_floats(total[c]);
            }
        }
    }

    // Adds the products of a group of values, times the columns' scales.
    template <int columns, int width>
    static void add_group(const uint8_t * scales, int group, const Lanes (&total)[width], Floats (&weighted)[width]) {
        for (int c = 0; c < width; ++c) {
            const Floats scale = spread(float_at(scales + 4 * (group * columns + c)));
            weighted[c] = add_product(to_floats(total[c]), scale, weighted[c]);
        }
    }

    // Scales within a block are floats.
    template <int type, int columns, int width>
    static void weigh_by_floats(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                                const uint8_t * scales, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        static_assert(layout.span == 16 && layout.group == 32 && room(layout.largest()) >= 4);
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const uint8_t * codes = panel + layout.part_bytes() * sub;
            const uint8_t * x = tile + 32 * columns * sub;
            const Part<Avx2, type> part(panel, sub);
            Floats group[width];
            SPECLLAMA_UNROLL
            for (int half = 0; half < 2; ++half) {
                Lanes total[width];
                begin<Avx2, type, columns>(sums, 2 * sub + half, total);
                add_by_columns<type, columns>(codes, half, x, both(_mm256_set1_epi16(1)), total);
                const Floats scale = part.scale(half);
                for (int c = 0; c < width; ++c) {
                    const Floats products = to_floats(total[c]);
                    group[c] = half == 0 ? multiply(products, scale) : add_product(products, scale, group[c]);
                }
            }
            for (int c = 0; c < width; ++c) {
                const Floats scale = spread(float_at(scales + 4 * (sub * columns + c)));
                weighted[c] = add_product(group[c], scale, weighted[c]);
            }
        }
    }

    // Adds the products of the digits in bytes of base 3.
    template <int columns, int width>
    static void add_thirds(Lanes left, int digits, const uint8_t * tile, Lanes (&total)[width]) {
        Lanes sum[width];
        SPECLLAMA_UNROLL
        for (int digit = 0; digit < digits; ++digit) {
            const Lanes code = thirds(left);
            left = add_bytes(left, add_bytes(left, left));
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                const Lanes pair = dot_pairs(code, spread_step(int_at(tile + 4 * (digit * columns + c))));
                sum[c] = digit == 0 ? pair : add_words(sum[c], pair);
                keep(sum[c]);
            }
        }
        for (int c = 0; c < width; ++c) {
            total[c] = add(total[c], dot_words(sum[c], both(_mm256_set1_epi16(1))));
        }
    }

    template <int type, int columns, int width>
    static void weigh_thirds(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                             Floats (&weighted)[width]) {
        constexpr int steps = layout_of(static_cast<QuantizedType>(type)).values / kStep;
        constexpr int last = steps / kThirds;
        static_assert(room(2) >= kThirds);
        Lanes total[width];
        begin<Avx2, type, columns>(sums, 0, total);
        for (int line = 0; line < last; ++line) {
            if (fetches) {
                __builtin_prefetch(panel + kAhead + 64 * line);
            }
            add_thirds<columns>(load(panel + 64 * line), kThirds, tile + 4 * kThirds * line * columns, total);
        }
        add_thirds<columns>(load(panel + 64 * last), steps % kThirds, tile + 4 * kThirds * last * columns, total);
        for (int c = 0; c < width; ++c) {
            weighted[c] = to_floats(total[c]);
        }
    }

    // Adds the products of one step of signed bytes.
    template <int columns, int width>
    static void add_signed_step(Lanes bytes, const uint8_t * x, Lanes (&total)[width]) {
        const Lanes even = {_mm256_srai_epi16(_mm256_slli_epi16(bytes.low, 8), 8),
                            _mm256_srai_epi16(_mm256_slli_epi16(bytes.high, 8), 8)};
        const Lanes odd = {_mm256_srai_epi16(bytes.low, 8), _mm256_srai_epi16(bytes.high, 8)};
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            total[c] = add(total[c], dot_words(even, spread_step(int_at(x + 4 * c))));
            keep(total[c]);
            total[c] = add(total[c], dot_words(odd, spread_step(int_at(x + 4 * (columns + c)))));
            keep(total[c]);
        }
    }

    template <int type, int columns, int width>
    static void weigh_signed(const uint8_t * panel, bool fetches, const uint8_t * tile, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        constexpr int pairs = layout.span == 16 ? 2 : 4;  // pairs of steps with the same scale
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const Part<Avx2, type> part(panel, sub);
            const uint8_t * x = tile + 64 * columns * sub;
            SPECLLAMA_UNROLL
            for (int first = 0; first < 4; first += pairs) {
                Lanes total[width];
                for (int c = 0; c < width; ++c) {
                    total[c] = spread(int32_t{0});
                }
                SPECLLAMA_UNROLL
                for (int pair = first; pair < first + pairs; ++pair) {
                    Lanes one = {};
                    Lanes other = {};
                    part.two_steps(pair, one, other);
                    add_signed_step<columns>(one, x + 16 * pair * columns, total);
                    add_signed_step<columns>(other, x + 8 * (2 * pair + 1) * columns, total);
                }
                for (int c = 0; c < width; ++c) {
                    weighted[c] = layout.span == 0
                                      ? to_floats(total[c])
                                      : add_product(to_floats(total[c]), part.scale(first / 2), weighted[c]);
                }
            }
        }
    }

    // Sets `weighted` to the products of one block with some columns, times the scales within the block.
    //
    // fetches: whether to prefetch weights that come later; tile, sums, scales: where the codes, the sums and the
    // scales of the first of these columns are.
    template <int type, int columns, int width>
    static void weigh(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                      const uint8_t * scales, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        for (int c = 0; c < width; ++c) {
            weighted[c] = spread(0.0F);
        }
        if constexpr (layout.is_signed) {
            weigh_signed<type, columns>(panel, fetches, tile, weighted);
        } else if constexpr (layout.codes == Codes::thirds) {
            weigh_thirds<type, columns>(panel, fetches, tile, sums, weighted);
        } else if constexpr (layout.scales == Scales::float8) {
            weigh_by_floats<type, columns>(panel, fetches, tile, sums, scales, weighted);
        } else {
            weigh_unsigned<type, columns>(panel, fetches, tile, sums, scales, weighted);
        }
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<Avx2, type, columns>;

template <int type>
constexpr Expand kExpand = expansion<Avx2, type>();

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

extern const InstructionSet kAvx2;
const InstructionSet kAvx2 = {
    "AVX2", true, kMostColumns, quantize_x86, SPECLLAMA_TABLE, SPECLLAMA_EXPANSIONS, kFloatKernels<Avx2Floats>};

}  // namespace specllama::kernels
