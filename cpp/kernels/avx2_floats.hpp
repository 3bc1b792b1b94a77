// Sixteen numbers in two registers of 256 bits. Included as x86_common.hpp is.
#pragma once

#include "kernels/avx2_lanes.hpp"
#include "kernels/float_lanes.hpp"

namespace specllama::kernels {

namespace {

struct Avx2Floats {
    static constexpr int kRows = 2;
    static constexpr int kColumns = 2;
    struct Floats {
        __m256 low;
        __m256 high;
    };

    static Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
    static Floats load(const float * at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
    static Floats load_halves(const uint8_t * at) {
        return {Avx2Lanes::load_halves(at), Avx2Lanes::load_halves(at + 16)};
    }
    static void store(float * at, Floats a) {
        _mm256_storeu_ps(at, a.low);
        _mm256_storeu_ps(at + 8, a.high);
    }
    static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
    static Floats multiply(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
    static Floats add_product(Floats a, Floats b, Floats c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
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
    static float largest(Floats a) { return largest_of(_mm256_max_ps(a.low, a.high)); }
};

}  // namespace

}  // namespace specllama::kernels
