// The products with AVX-512 VNNI. A register holds one step of all rows of a panel.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's header for AVX-512 uses a value that is undefined on purpose, and GCC warns of that value (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "kernels/byte_dots.hpp"
#include "kernels/float_lanes.hpp"
#include "kernels/x86_common.hpp"

namespace specllama::kernels {

namespace {

struct Avx512Lanes {
    // How many columns are multiplied at once. All sums stay in registers.
    static constexpr int columns_at_once(const Layout & /*layout*/) { return 8; }
    // The instruction takes one factor as unsigned, so 128 is added to signed values.
    static constexpr bool kSignedProducts = false;
    static constexpr bool kIndexesSteps = false;
    static constexpr bool kHoldsAllSums = true;

    using Lanes = __m512i;
    using Floats = __m512;

    static __m256i load_half(const uint8_t * at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }
    static Lanes load(const uint8_t * at) { return _mm512_loadu_si512(at); }
    static void store_lanes(uint8_t * at, Lanes lanes) { _mm512_storeu_si512(at, lanes); }
    static Floats load_floats(const uint8_t * at) { return _mm512_loadu_ps(at); }
    static Lanes spread(int32_t value) { return _mm512_set1_epi32(value); }
    static Floats spread(float value) { return _mm512_set1_ps(value); }
    static Lanes spread_step(int32_t value) { return spread(value); }
    static Lanes bits(Lanes bytes, int down, int mask) {
        if (down > 0) {
            bytes = _mm512_srli_epi16(bytes, static_cast<unsigned>(down));
        } else if (down < 0) {
            bytes = _mm512_slli_epi16(bytes, static_cast<unsigned>(-down));
        }
        return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(mask)));
    }
    static Lanes either(Lanes a, Lanes b) { return _mm512_or_si512(a, b); }
    static Lanes common(Lanes a, int32_t mask) { return _mm512_and_si512(a, spread(mask)); }
    static Lanes differing(Lanes a, Lanes b) { return _mm512_xor_si512(a, b); }
    static Lanes shift_down(Lanes a, int bits) { return _mm512_srli_epi32(a, static_cast<unsigned>(bits)); }
    static Lanes shift_up(Lanes a, int bits) {
        return bits < 0 ? shift_down(a, -bits) : _mm512_slli_epi32(a, static_cast<unsigned>(bits));
    }
    static Lanes widen_bytes(const uint8_t * at) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
    }
    static Lanes add_bytes(Lanes a, Lanes b) { return _mm512_add_epi8(a, b); }
    // In which third of 256 each byte is: the highest two bits of three quarters of what is 1 less.
    static Lanes thirds(Lanes bytes) {
        const Lanes less = _mm512_subs_epu8(bytes, _mm512_set1_epi8(1));
        return bits(_mm512_avg_epu8(less, _mm512_avg_epu8(less, _mm512_setzero_si512())), 6, 3);
    }
    // Entries of a table of four bytes.
    static Lanes gather_fours(const uint32_t * table, Lanes indices) {
        return _mm512_i32gather_epi32(indices, table, 4);
    }
    // The first and the last four bytes of entries of eight bytes.
    static void gather_eights(const uint32_t * table, Lanes indices, Lanes & first, Lanes & second) {
        // The halves are put together again in quarters, so each quarter of the rows is gathered by both registers.
        const Lanes sorted = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), indices);
        const auto * entries = reinterpret_cast<const long long *>(table);
        const __m512 one = _mm512_castsi512_ps(_mm512_i32gather_epi64(_mm512_castsi512_si256(sorted), entries, 8));
        const __m512 other =
            _mm512_castsi512_ps(_mm512_i32gather_epi64(_mm512_extracti64x4_epi64(sorted, 1), entries, 8));
        first = _mm512_castps_si512(_mm512_shuffle_ps(one, other, 0x88));
        second = _mm512_castps_si512(_mm512_shuffle_ps(one, other, 0xDD));
    }
    // Negates the bytes whose sign is set. signs: four bytes for each row, with the signs of eight values each. The
    // bytes are the half `half` of the eight values `eight`.
    static Lanes negate(Lanes bytes, Lanes signs, int eight, int half) {
        const __m128i places = _mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
                                            _mm_set1_epi8(static_cast<char>(eight)));
        const Lanes spread_signs = _mm512_shuffle_epi8(signs, _mm512_broadcast_i32x4(places));
        const __mmask64 is_set =
            _mm512_test_epi8_mask(spread_signs, spread(static_cast<int32_t>(half == 0 ? 0x08040201U : 0x80402010U)));
        return _mm512_mask_sub_epi8(bytes, is_set, _mm512_setzero_si512(), bytes);
    }
    static Lanes flip_signs(Lanes bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)); }
    static Lanes shuffle(Lanes bytes, Lanes indices) { return _mm512_shuffle_epi8(bytes, indices); }
    static Lanes add(Lanes a, Lanes b) { return _mm512_add_epi32(a, b); }
    static Lanes dot_words(Lanes a, Lanes b) { return _mm512_madd_epi16(a, b); }
    static Lanes add_dot_words(Lanes sum, Lanes a, Lanes b) { return _mm512_dpwssd_epi32(sum, a, b); }
    static Lanes dot_bytes(Lanes sum, Lanes codes, Lanes x) { return _mm512_dpbusd_epi32(sum, codes, x); }
    static Lanes widen_signed(const uint8_t * at) { return _mm512_cvtepi8_epi16(load_half(at)); }
    static Lanes widen_unsigned(const uint8_t * at) { return _mm512_cvtepu8_epi16(load_half(at)); }
    static Lanes low_nibbles(Lanes words) { return _mm512_and_si512(words, _mm512_set1_epi16(15)); }
    static Lanes high_nibbles(Lanes words) { return _mm512_srli_epi16(words, 4); }
    static Lanes word(Lanes pairs, int which) {
        return _mm512_srai_epi32(which == 0 ? _mm512_slli_epi32(pairs, 16) : pairs, 16);
    }
    // Does nothing: there are 32 registers, so the compiler may choose the order of additions.
    static void keep(Lanes & /*lanes*/) {}
    static Floats to_floats(Lanes lanes) { return _mm512_cvtepi32_ps(lanes); }
    static Floats load_halves(const uint8_t * at) { return _mm512_cvtph_ps(load_half(at)); }
    static Floats load_float8(const uint8_t * at) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
        return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
    }
    // Floats of which only the first 16 bits are stored; the other 16 bits are 0.
    static Floats load_first_halves(const uint8_t * at) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(at)), 16));
    }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats add_product(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats subtract_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
    static void store(float * at, Floats values) { _mm512_storeu_ps(at, values); }
    static Lanes fp4_values() {
        return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    }
    static Lanes iq4_values() {
        return _mm512_broadcast_i32x4(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    }
};

struct Avx512Floats {
    static constexpr int kRows = 4;     // rows of the cache that are multiplied at once
    static constexpr int kColumns = 6;  // queries that the rows are multiplied with; all sums stay in registers
    using Floats = __m512;

    static Floats spread(float value) { return _mm512_set1_ps(value); }
    static Floats load(const float * at) { return _mm512_loadu_ps(at); }
    static Floats load_halves(const uint8_t * at) { return Avx512Lanes::load_halves(at); }
    static Floats spread_half(const uint8_t * at) { return spread(float_of_half(at)); }
    static Floats load_bytes(const uint8_t * at) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))));
    }
    // The values of 16 nibbles: the low or the high ones of 16 bytes.
    static Floats load_nibbles(const uint8_t * at, bool high, const int8_t (&values)[16]) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(values_of_nibbles(at, high, values)));
    }
    static void store(float * at, Floats values) { _mm512_storeu_ps(at, values); }
    // Past the caches, to a multiple of 32 bytes.
    static void stream(float * at, Floats values) {
        _mm256_stream_ps(at, _mm512_castps512_ps256(values));
        _mm256_stream_ps(at + 8, _mm512_extractf32x8_ps(values, 1));
    }
    static void finish_streams() { _mm_sfence(); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
    static Floats add_product(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
    static Floats nearest(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Floats times_power_of_two(Floats a, Floats n) {
        const __m512i power = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power));
    }
    static Floats zero_where_below(Floats x, Floats least, Floats a) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), a);
    }
    static float first(Floats a) { return _mm512_cvtss_f32(a); }
    static float total(Floats a) {
        return total_of(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
    }
    // Stores four totals at once, with less than half of the instructions that four single totals would take.
    static void store_totals(const Floats (&a)[kRows], float * at) {
        const Floats pairs = add(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xEE));
        const Floats others = add(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xEE));
        // Four partial sums of each row are left.
        const Floats fours = add(_mm512_shuffle_f32x4(pairs, others, 0x88), _mm512_shuffle_f32x4(pairs, others, 0xDD));
        const Floats twos = add(fours, _mm512_permute_ps(fours, 0xEE));
        const Floats ones = add(twos, _mm512_permute_ps(twos, 0xF5));
        const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm_storeu_ps(at, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, ones)));
    }
    static float largest(Floats a) {
        return largest_of(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
    }
};

template <int type, int columns>
constexpr Multiply kMultiply = multiply_panel<ByteDots<StepDots<Avx512Lanes>>, type, columns>;

template <int type>
constexpr Expand kExpand = expansion<ByteDots<StepDots<Avx512Lanes>>, type>();

}  // namespace

#define SPECLLAMA_MULTIPLY kMultiply
#define SPECLLAMA_EXPAND kExpand
#include "kernels/table.inc"

extern const InstructionSet kAvx512Vnni;
const InstructionSet kAvx512Vnni = {"AVX-512 VNNI",
                                    false,
                                    kMostColumns,
                                    quantize_x86,
                                    SPECLLAMA_TABLE,
                                    SPECLLAMA_EXPANSIONS,
                                    kFloatKernels<Avx512Floats>};

}  // namespace specllama::kernels
