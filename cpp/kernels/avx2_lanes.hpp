// Registers of 256 bits, which hold eight rows of a panel. The rules of panel_product.hpp hold here, too.
#pragma once

#include "kernels/float_lanes.hpp"
#include "kernels/x86_common.hpp"

namespace specllama::kernels {

namespace {

// A panel's rows in two registers: each number that is read of a column serves both registers.
struct Avx2Lanes {
    struct Lanes {
        __m256i low;
        __m256i high;
    };
    struct Floats {
        __m256 low;
        __m256 high;
    };

    static __m128i load_half(const uint8_t * at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }
    static __m256i load_one(const uint8_t * at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }
    static Lanes load(const uint8_t * at) { return {load_one(at), load_one(at + 32)}; }
    static void store_lanes(uint8_t * at, Lanes lanes) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), lanes.low);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(at + 32), lanes.high);
    }
    static Floats load_floats(const uint8_t * at) {
        const auto * floats = reinterpret_cast<const float *>(at);
        return {_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8)};
    }
    static Lanes both(__m256i value) { return {value, value}; }
    static Lanes spread(int32_t value) { return both(_mm256_set1_epi32(value)); }
    static Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    // One step of one column, which all rows are multiplied with.
    static __m256i spread_step(int32_t value) { return _mm256_set1_epi32(value); }
    // Moves each byte down by `down` bits (up, if `down` is negative), and masks it.
    static __m256i bits(__m256i bytes, int down, int mask) {
        if (down > 0) {
            bytes = _mm256_srli_epi16(bytes, down);
        } else if (down < 0) {
            bytes = _mm256_slli_epi16(bytes, -down);
        }
        return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(mask)));
    }
    static Lanes bits(Lanes bytes, int down, int mask) {
        return {bits(bytes.low, down, mask), bits(bytes.high, down, mask)};
    }
    static Lanes either(Lanes a, Lanes b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
    static Lanes common(Lanes a, int32_t mask) {
        const __m256i all = _mm256_set1_epi32(mask);
        return {_mm256_and_si256(a.low, all), _mm256_and_si256(a.high, all)};
    }
    static Lanes differing(Lanes a, Lanes b) {
        return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
    }
    static Lanes shift_down(Lanes a, int bits) {
        return {_mm256_srli_epi32(a.low, bits), _mm256_srli_epi32(a.high, bits)};
    }
    static Lanes shift_up(Lanes a, int bits) {
        return bits < 0 ? shift_down(a, -bits) : Lanes{_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
    }
    static __m256i widen_eight_bytes(const uint8_t * at) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
    }
    static Lanes widen_bytes(const uint8_t * at) { return {widen_eight_bytes(at), widen_eight_bytes(at + 8)}; }
    // In which third of 256 each byte is: the highest two bits of three quarters of what is 1 less.
    static __m256i thirds(__m256i bytes) {
        const __m256i less = _mm256_subs_epu8(bytes, _mm256_set1_epi8(1));
        return bits(_mm256_avg_epu8(less, _mm256_avg_epu8(less, _mm256_setzero_si256())), 6, 3);
    }
    static Lanes thirds(Lanes bytes) { return {thirds(bytes.low), thirds(bytes.high)}; }
    static Lanes add_bytes(Lanes a, Lanes b) {
        return {_mm256_add_epi8(a.low, b.low), _mm256_add_epi8(a.high, b.high)};
    }
    // Entries of a table of four bytes.
    static Lanes gather_fours(const uint32_t * table, Lanes indices) {
        const auto * entries = reinterpret_cast<const int *>(table);
        return {_mm256_i32gather_epi32(entries, indices.low, 4), _mm256_i32gather_epi32(entries, indices.high, 4)};
    }
    // The first and the last four bytes of entries of eight bytes.
    static void gather_eights(const uint32_t * table, __m256i indices, __m256i & first, __m256i & second) {
        // The halves are put together again in halves, so each half of the rows is gathered by both registers.
        const __m256i sorted = _mm256_permute4x64_epi64(indices, 0xD8);
        const auto * entries = reinterpret_cast<const long long *>(table);
        const __m256 one = _mm256_castsi256_ps(_mm256_i32gather_epi64(entries, _mm256_castsi256_si128(sorted), 8));
        const __m256 other =
            _mm256_castsi256_ps(_mm256_i32gather_epi64(entries, _mm256_extracti128_si256(sorted, 1), 8));
        first = _mm256_castps_si256(_mm256_shuffle_ps(one, other, 0x88));
        second = _mm256_castps_si256(_mm256_shuffle_ps(one, other, 0xDD));
    }
    static void gather_eights(const uint32_t * table, Lanes indices, Lanes & first, Lanes & second) {
        gather_eights(table, indices.low, first.low, second.low);
        gather_eights(table, indices.high, first.high, second.high);
    }
    // Negates the bytes whose sign is set. signs: four bytes for each row, with the signs of eight values each. The
    // bytes are the half `half` of the eight values `eight`.
    static __m256i negate(__m256i bytes, __m256i signs, int eight, int half) {
        const __m256i places = _mm256_add_epi8(_mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,  //
                                                                0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12),
                                               _mm256_set1_epi8(static_cast<char>(eight)));
        const __m256i bits = _mm256_set1_epi32(static_cast<int32_t>(half == 0 ? 0x08040201U : 0x80402010U));
        const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(signs, places), bits);
        const __m256i is_set = _mm256_cmpeq_epi8(found, bits);
        return _mm256_sub_epi8(_mm256_xor_si256(bytes, is_set), is_set);
    }
    static Lanes negate(Lanes bytes, Lanes signs, int eight, int half) {
        return {negate(bytes.low, signs.low, eight, half), negate(bytes.high, signs.high, eight, half)};
    }
    static Lanes flip_signs(Lanes bytes) {
        const __m256i sign = _mm256_set1_epi8(-128);
        return {_mm256_xor_si256(bytes.low, sign), _mm256_xor_si256(bytes.high, sign)};
    }
    static Lanes shuffle(Lanes bytes, Lanes indices) {
        return {_mm256_shuffle_epi8(bytes.low, indices.low), _mm256_shuffle_epi8(bytes.high, indices.high)};
    }
    static Lanes add(Lanes a, Lanes b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
    static Lanes dot_words(Lanes a, Lanes b) {
        return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)};
    }
    static Lanes widen_signed(const uint8_t * at) {
        return {_mm256_cvtepi8_epi16(load_half(at)), _mm256_cvtepi8_epi16(load_half(at + 16))};
    }
    static Lanes widen_unsigned(const uint8_t * at) {
        return {_mm256_cvtepu8_epi16(load_half(at)), _mm256_cvtepu8_epi16(load_half(at + 16))};
    }
    static Lanes low_nibbles(Lanes words) {
        const __m256i mask = _mm256_set1_epi16(15);
        return {_mm256_and_si256(words.low, mask), _mm256_and_si256(words.high, mask)};
    }
    static Lanes high_nibbles(Lanes words) {
        return {_mm256_srli_epi16(words.low, 4), _mm256_srli_epi16(words.high, 4)};
    }
    static __m256i word(__m256i pairs, int which) {
        return _mm256_srai_epi32(which == 0 ? _mm256_slli_epi32(pairs, 16) : pairs, 16);
    }
    static Lanes word(Lanes pairs, int which) { return {word(pairs.low, which), word(pairs.high, which)}; }
    // Keeps the order of additions. Else the compiler would compute many products first, and run out of registers.
    static void keep(Lanes & lanes) { asm("" : "+x"(lanes.low), "+x"(lanes.high)); }
    static Floats to_floats(Lanes lanes) { return {_mm256_cvtepi32_ps(lanes.low), _mm256_cvtepi32_ps(lanes.high)}; }
    static __m256 load_eight_halves(const uint8_t * at) { return _mm256_cvtph_ps(load_half(at)); }
    static Floats load_halves(const uint8_t * at) { return {load_eight_halves(at), load_eight_halves(at + 16)}; }
    static __m256 load_eight_float8(const uint8_t * at) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at));
        return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
    }
    static Floats load_float8(const uint8_t * at) { return {load_eight_float8(at), load_eight_float8(at + 8)}; }
    // Floats of which only the first 16 bits are stored; the other 16 bits are 0.
    static __m256 load_eight_first_halves(const uint8_t * at) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(at)), 16));
    }
    static Floats load_first_halves(const uint8_t * at) {
        return {load_eight_first_halves(at), load_eight_first_halves(at + 16)};
    }
    static Floats multiply(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static Floats add_product(Floats a, Floats b, Floats c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static Floats subtract_product(Floats a, Floats b, Floats c) {
        return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
    }
    static void store(float * at, Floats values) {
        _mm256_storeu_ps(at, values.low);
        _mm256_storeu_ps(at + 8, values.high);
    }
    static Lanes fp4_values() {
        return both(_mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0,  //
                                     12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    }
    static Lanes iq4_values() {
        return both(_mm256_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,  //
                                     -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    }
};

// Sixteen floats in two registers.
struct Avx2Floats : private Avx2Lanes {
    static constexpr int kRows = 2;
    static constexpr int kColumns = 2;
    using Avx2Lanes::add_product;
    using Avx2Lanes::Floats;
    using Avx2Lanes::load_halves;
    using Avx2Lanes::multiply;
    using Avx2Lanes::spread;
    using Avx2Lanes::store;

    static Floats load(const float * at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
    static Floats spread_half(const uint8_t * at) { return spread(float_of_half(at)); }
    static __m256 load_eight_bytes(const uint8_t * at) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at))));
    }
    static Floats load_bytes(const uint8_t * at) { return {load_eight_bytes(at), load_eight_bytes(at + 8)}; }
    static Floats load_nibbles(const uint8_t * at, bool high, const int8_t (&values)[16]) {
        const __m128i all = values_of_nibbles(at, high, values);
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(all, all)))};
    }
    // Past the caches, to a multiple of 32 bytes.
    static void stream(float * at, Floats values) {
        _mm256_stream_ps(at, values.low);
        _mm256_stream_ps(at + 8, values.high);
    }
    static void finish_streams() { _mm_sfence(); }
    static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static Floats divide(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
    static Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
    static __m256 nearest(__m256 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Floats nearest(Floats a) { return {nearest(a.low), nearest(a.high)}; }
    static __m256 times_power_of_two(__m256 a, __m256 n) {
        const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
    }
    static Floats times_power_of_two(Floats a, Floats n) {
        return {times_power_of_two(a.low, n.low), times_power_of_two(a.high, n.high)};
    }
    static Floats zero_where_below(Floats x, Floats least, Floats a) {
        return {_mm256_and_ps(_mm256_cmp_ps(x.low, least.low, _CMP_GE_OQ), a.low),
                _mm256_and_ps(_mm256_cmp_ps(x.high, least.high, _CMP_GE_OQ), a.high)};
    }
    static float first(Floats a) { return _mm256_cvtss_f32(a.low); }
    static float total(Floats a) { return total_of(_mm256_add_ps(a.low, a.high)); }
    // Stores both totals at once.
    static void store_totals(const Floats (&a)[kRows], float * at) {
        const __m256 one = _mm256_add_ps(a[0].low, a[0].high);
        const __m256 other = _mm256_add_ps(a[1].low, a[1].high);
        // Four partial sums of each row are left.
        const __m256 fours =
            _mm256_add_ps(_mm256_permute2f128_ps(one, other, 0x20), _mm256_permute2f128_ps(one, other, 0x31));
        const __m256 twos = _mm256_add_ps(fours, _mm256_permute_ps(fours, 0xEE));
        const __m256 ones = _mm256_add_ps(twos, _mm256_permute_ps(twos, 0xF5));
        const __m128 both = _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1));
        _mm_storel_pi(reinterpret_cast<__m64 *>(at), both);
    }
    static float largest(Floats a) { return largest_of(_mm256_max_ps(a.low, a.high)); }
};

}  // namespace

}  // namespace specllama::kernels
