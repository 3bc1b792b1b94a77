// The products with AVX2. Bytes are multiplied in pairs, and the sum of a pair fits into 16 bits. So several sums are
// added before they are widened.
#include "kernels/avx2_lanes.hpp"

namespace specllama::kernels {

namespace {

struct Avx2 : Avx2Lanes {
    // Signed values are multiplied as words, because vpmaddubsw saturates where both factors have eight bits.
    static constexpr bool kSignedProducts = true;

    template <bool is_fp4>
    static Lanes look_up(Lanes codes) {
        return shuffle(is_fp4 ? fp4_values() : iq4_values(), codes);
    }

    // Repeats the scale `which` of each pair, so that it stands in both words.
    static Lanes twice(Lanes pairs, int which) {
        const Lanes first = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,  //
                                             0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
        const Lanes second = _mm256_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15,  //
                                              2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
        return _mm256_shuffle_epi8(pairs, which == 0 ? first : second);
    }

    // How many products of two bytes may be added in 16 bits.
    static constexpr int room(int largest) { return 32767 / (2 * 127 * largest); }

    // Adds the products of 16 values, in four steps, step by step for all columns. fresh: whether the sums in 16 bits
    // begin here; done: whether they end.
    template <int type, int columns>
    static void add_by_steps(const uint8_t * codes, int half, const uint8_t * tile, bool fresh, bool done, Lanes scale,
                             Lanes (&part)[columns], Lanes (&total)[columns]) {
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            const Lanes code = step_of<Avx2, type>(codes, half, index);
            SPECLLAMA_UNROLL
            for (int c = 0; c < columns; ++c) {
                const Lanes x = spread(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                const Lanes pair = _mm256_maddubs_epi16(code, x);
                part[c] = fresh && index == 0 ? pair : _mm256_add_epi16(part[c], pair);
                keep(part[c]);
                if (done && index == 3) {
                    total[c] = add(total[c], dot_words(part[c], scale));
                }
            }
        }
    }

    // The same for sums in 16 bits that end here, column by column. The codes of the four steps stay in registers, and
    // so do the sums of eight columns: on a Zen 3, eight columns of Q6_K take 0.91 of the time.
    template <int type, int columns>
    static void add_by_columns(const uint8_t * codes, int half, const uint8_t * tile, Lanes scale,
                               Lanes (&total)[columns]) {
        constexpr int most = room(layout_of(static_cast<QuantizedType>(type)).largest());
        static_assert(most >= 2);
        Lanes code[4];
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            code[index] = step_of<Avx2, type>(codes, half, index);
            keep(code[index]);
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < columns; ++c) {
            Lanes part = spread(int32_t{0});
            SPECLLAMA_UNROLL
            for (int index = 0; index < 4; ++index) {
                const Lanes x = spread(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                const Lanes pair = _mm256_maddubs_epi16(code[index], x);
                part = index == 0 || (most < 4 && index == 2) ? pair : _mm256_add_epi16(part, pair);
                if (index == 3 || (most < 4 && index == 1)) {
                    total[c] = add(total[c], dot_words(part, scale));
                    keep(total[c]);
                }
            }
        }
    }

    template <int type, int columns>
    static void weigh_unsigned(const uint8_t * panel, int first_row, const uint8_t * tile,
                               Floats (&weighted)[columns]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        constexpr bool long_sums = layout.span != 16 && room(layout.largest()) >= 8;
        Lanes total[columns];
        begin<Avx2, type, columns>(tile, 0, total);
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            prefetch<Avx2, type>(panel, first_row, sub);
            const uint8_t * codes = panel + 64 * (layout.low_bits + layout.high_bits) * sub + 4 * first_row;
            const uint8_t * x = tile + 32 * columns * sub;
            Lanes scale[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
            if constexpr (layout.span == 16) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub, first_row);
                scale[0] = twice(pairs, 0);
                scale[1] = twice(pairs, 1);
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub / 2, first_row);
                scale[0] = scale[1] = sub % 2 == 0 ? twice(pairs, 0) : twice(pairs, 1);
            }
            if constexpr (long_sums) {
                Lanes part[columns];
                add_by_steps<type, columns>(codes, 0, x, true, false, scale[0], part, total);
                add_by_steps<type, columns>(codes, 1, x, false, true, scale[1], part, total);
            } else {
                add_by_columns<type, columns>(codes, 0, x, scale[0], total);
                add_by_columns<type, columns>(codes, 1, x, scale[1], total);
            }
        }
        for (int c = 0; c < columns; ++c) {
            weighted[c] = to_floats(total[c]);
        }
    }

    template <int type, int columns>
    static void weigh_signed(const uint8_t * panel, int first_row, const uint8_t * tile, Floats (&weighted)[columns]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        for (int c = 0; c < columns; ++c) {
            weighted[c] = spread(0.0F);
        }
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            prefetch<Avx2, type>(panel, first_row, sub);
            const uint8_t * codes = panel + 64 * layout.low_bits * sub + 4 * first_row;
            const uint8_t * x = tile + 64 * columns * sub;
            Lanes total[columns];
            SPECLLAMA_UNROLL
            for (int step = 0; step < 8; ++step) {
                const Lanes bytes = step_of<Avx2, type>(codes, step / 4, step % 4);
                const Lanes even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
                const Lanes odd = _mm256_srai_epi16(bytes, 8);
                SPECLLAMA_UNROLL
                for (int c = 0; c < columns; ++c) {
                    const Lanes first = dot_words(even, spread(int_at(x + 4 * (2 * step * columns + c))));
                    const Lanes second = dot_words(odd, spread(int_at(x + 4 * ((2 * step + 1) * columns + c))));
                    total[c] = step == 0 ? first : add(total[c], first);
                    keep(total[c]);
                    total[c] = add(total[c], second);
                    keep(total[c]);
                }
            }
            if constexpr (layout.span == 0) {
                for (int c = 0; c < columns; ++c) {
                    weighted[c] = to_floats(total[c]);
                }
            } else {
                const Lanes pairs = scales_of<Avx2, type>(panel, sub / 2, first_row);
                const Floats scale = to_floats(sub % 2 == 0 ? word(pairs, 0) : word(pairs, 1));
                for (int c = 0; c < columns; ++c) {
                    weighted[c] = add_product(to_floats(total[c]), scale, weighted[c]);
                }
            }
        }
    }

    template <int type, int columns>
    static void weigh(const uint8_t * panel, int first_row, const uint8_t * tile, Floats (&weighted)[columns]) {
        if constexpr (layout_of(static_cast<QuantizedType>(type)).is_signed) {
            weigh_signed<type, columns>(panel, first_row, tile, weighted);
        } else {
            weigh_unsigned<type, columns>(panel, first_row, tile, weighted);
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
