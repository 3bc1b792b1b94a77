// Registers of 256 bits: eight rows of a panel. Included as x86_common.hpp is.
#pragma once

#include "kernels/x86_common.hpp"

namespace specllama::kernels {

namespace {

struct Avx2Lanes {
    static constexpr int kRows = 8;
    using Lanes = __m256i;
    using Floats = __m256;

    static __m128i load_half(const uint8_t * at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }
    static Lanes load(const uint8_t * at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }
    static Lanes spread(int32_t value) { return _mm256_set1_epi32(value); }
    static Floats spread(float value) { return _mm256_set1_ps(value); }
    // Each byte moved down by so many bits (up, if negative), and masked.
    static Lanes bits(Lanes bytes, int down, int mask) {
        if (down > 0) {
            bytes = _mm256_srli_epi16(bytes, down);
        } else if (down < 0) {
            bytes = _mm256_slli_epi16(bytes, -down);
        }
        return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(mask)));
    }
    static Lanes either(Lanes a, Lanes b) { return _mm256_or_si256(a, b); }
    static Lanes flip_signs(Lanes bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)); }
    static Lanes shuffle(Lanes bytes, Lanes indices) { return _mm256_shuffle_epi8(bytes, indices); }
    static Lanes add(Lanes a, Lanes b) { return _mm256_add_epi32(a, b); }
    static Lanes dot_words(Lanes a, Lanes b) { return _mm256_madd_epi16(a, b); }
    static Lanes widen_signed(const uint8_t * at) { return _mm256_cvtepi8_epi16(load_half(at)); }
    static Lanes widen_unsigned(const uint8_t * at) { return _mm256_cvtepu8_epi16(load_half(at)); }
    static Lanes low_nibbles(Lanes words) { return _mm256_and_si256(words, _mm256_set1_epi16(15)); }
    static Lanes high_nibbles(Lanes words) { return _mm256_srli_epi16(words, 4); }
    static Lanes word(Lanes pairs, int which) {
        return _mm256_srai_epi32(which == 0 ? _mm256_slli_epi32(pairs, 16) : pairs, 16);
    }
    // Keeps the order of additions: the compiler would compute many products first and run out of registers.
    static void keep(Lanes & lanes) { asm("" : "+x"(lanes)); }
    static Floats to_floats(Lanes lanes) { return _mm256_cvtepi32_ps(lanes); }
    static Floats load_halves(const uint8_t * at) { return _mm256_cvtph_ps(load_half(at)); }
    static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats add_product(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
    static Floats subtract_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
    static void store(float * at, Floats values) { _mm256_storeu_ps(at, values); }
    static Lanes iq4_values() {
        return _mm256_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,  //
                                -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    }
};

}  // namespace

}  // namespace specllama::kernels
