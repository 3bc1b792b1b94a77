// What the x86 sets share. The rules of panel_product.hpp hold here, too.
#pragma once

#include <immintrin.h>

#include "kernels/panel_product.hpp"

namespace specllama::kernels {

namespace {

inline float total_of(__m256 lanes) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float float_of_half(const uint8_t * at) {
    uint16_t half = 0;
    __builtin_memcpy(&half, at, sizeof half);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

// The values of 16 nibbles: the low or the high ones of 16 bytes.
inline __m128i values_of_nibbles(const uint8_t * at, bool high, const int8_t (&values)[16]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
    const __m128i nibbles = _mm_and_si128(high ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
    return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values)), nibbles);
}

inline float largest_of(__m256 lanes) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline float largest_magnitude(const float * x, int values) {
    const __m256 sign = _mm256_set1_ps(-0.0F);
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < values; i += 8) {
        most = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), most);
    }
    return largest_of(most);
}

// Gives the same result as quantize_plain.
inline void quantize_x86(const float * x, int values, float & d, int8_t * codes, int16_t * sums) {
    const float largest = largest_magnitude(x, values);
    d = largest / 127.0F;
    const __m256 inverse = _mm256_set1_ps(largest > 0.0F ? 127.0F / largest : 0.0F);
    for (int i = 0; i < values; i += 32) {
        __m256i eight[4];
        SPECLLAMA_UNROLL
        for (int part = 0; part < 4; ++part) {
            eight[part] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * part), inverse));
        }
        // Packing puts the halves of registers side by side, and clamps numbers that are too large for a byte.
        const __m256i mixed =
            _mm256_packs_epi16(_mm256_packs_epi32(eight[0], eight[1]), _mm256_packs_epi32(eight[2], eight[3]));
        const __m256i ordered = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        const __m256i all = _mm256_max_epi8(ordered, _mm256_set1_epi8(-127));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes + i), all);
        // The instruction sums eight unsigned bytes at a time, so 128 is added to each code and taken off the sums
        // again.
        const __m256i moved = _mm256_xor_si256(all, _mm256_set1_epi8(-128));
        const __m256i eights = _mm256_sad_epu8(moved, _mm256_setzero_si256());
        const __m256i both = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
        sums[i / 16] = static_cast<int16_t>(_mm256_cvtsi256_si32(both) - 16 * 128);
        sums[i / 16 + 1] = static_cast<int16_t>(_mm256_extract_epi32(both, 4) - 16 * 128);
    }
}

}  // namespace

}  // namespace specllama::kernels
