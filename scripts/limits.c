// Measures two limits of a machine that decoding and prompts can come near. It is built by `cc -O3 -fopenmp`.
// Prints the bytes that all threads together read from memory in a nanosecond, and the products of 8-bit integers that
// they do in a nanosecond with the instructions of each set of kernels that this processor has. See limits.py.
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, CHAINS = 16 };  // chains that do not wait for each other keep the units busy
static const size_t kBytes = (size_t)1 << 30;
static const long kSteps = 40 * 1000 * 1000;

static double read_once(const char * memory) {
    const double start = omp_get_wtime();
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (size_t i = 0; i < kBytes; i += 64) {
        uint64_t word;
        memcpy(&word, memory + i, sizeof word);
        sum += word;
    }
    const double seconds = omp_get_wtime() - start;
    return sum == 1 ? 0.0 : (double)kBytes / seconds * 1e-9;  // the sum is used, so that the compiler keeps the reads
}

__attribute__((target("avx512f,avx512vnni"))) static int run_avx512_vnni(void) {
    __m512i sums[CHAINS];
    __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
    for (int k = 0; k < CHAINS; ++k) {
        sums[k] = _mm512_setzero_si512();
    }
    for (long i = 0; i < kSteps; ++i) {
        for (int k = 0; k < CHAINS; ++k) {
            sums[k] = _mm512_dpbusd_epi32(sums[k], a, b);
        }
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    for (int k = 1; k < CHAINS; ++k) {
        sums[0] = _mm512_add_epi32(sums[0], sums[k]);
    }
    return _mm512_reduce_add_epi32(sums[0]);
}

// The sums are single variables, because GCC 12 would write an array of them to memory in each step.
__attribute__((target("avx2,avxvnni"))) static int run_avx_vnni(void) {
    const __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
    __m256i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, s10 = a, s11 = a;
#define STEP(sum) __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
    for (long i = 0; i < kSteps; ++i) {
        STEP(s0);
        STEP(s1);
        STEP(s2);
        STEP(s3);
        STEP(s4);
        STEP(s5);
        STEP(s6);
        STEP(s7);
        STEP(s8);
        STEP(s9);
        STEP(s10);
        STEP(s11);
    }
#undef STEP
    const __m256i low = _mm256_add_epi32(_mm256_add_epi32(s0, s1), _mm256_add_epi32(s2, s3));
    const __m256i middle = _mm256_add_epi32(_mm256_add_epi32(s4, s5), _mm256_add_epi32(s6, s7));
    const __m256i high = _mm256_add_epi32(_mm256_add_epi32(s8, s9), _mm256_add_epi32(s10, s11));
    return _mm256_extract_epi32(_mm256_add_epi32(low, _mm256_add_epi32(middle, high)), 0);
}

// It does not widen the sums of 16 bits, which the kernels do once for several products.
__attribute__((target("avx2"))) static int run_avx2(void) {
    __m256i sums[CHAINS / 2];
    __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2);
    for (int k = 0; k < CHAINS / 2; ++k) {
        sums[k] = _mm256_setzero_si256();
    }
    for (long i = 0; i < kSteps; ++i) {
        for (int k = 0; k < CHAINS / 2; ++k) {
            __asm__ volatile("" : "+x"(a));  // else all chains would share one product
            sums[k] = _mm256_add_epi16(sums[k], _mm256_maddubs_epi16(a, b));
        }
    }
    for (int k = 1; k < CHAINS / 2; ++k) {
        sums[0] = _mm256_add_epi32(sums[0], sums[k]);
    }
    return _mm256_extract_epi32(sums[0], 0);
}

typedef struct {
    const char * name;
    int present;
    int (*run)(void);
    double products;  // of each step
    double best;
} Set;

static double multiply_once(const Set * set) {
    const double start = omp_get_wtime();
    int found = 0;
    int threads = 1;
#pragma omp parallel reduction(+ : found)
    {
        found += set->run();
#pragma omp single
        threads = omp_get_num_threads();
    }
    const double seconds = omp_get_wtime() - start;
    return found == 1 ? 0.0 : (double)threads * (double)kSteps * set->products / seconds * 1e-9;
}

int main(void) {
    Set sets[] = {
        {"AVX-512 VNNI", __builtin_cpu_supports("avx512vnni"), run_avx512_vnni, CHAINS * 64, 0.0},
        {"AVX-VNNI", __builtin_cpu_supports("avxvnni"), run_avx_vnni, (CHAINS - 4) * 32, 0.0},
        {"AVX2", __builtin_cpu_supports("avx2"), run_avx2, CHAINS / 2 * 32, 0.0},
    };
    const int num_sets = (int)(sizeof sets / sizeof *sets);
    char * memory = malloc(kBytes);
    if (memory == NULL) {
        return 1;
    }
    memset(memory, 1, kBytes);
    double bytes = 0.0;
    for (int i = 0; i < REPEATS; ++i) {
        const double read = read_once(memory);
        bytes = read > bytes ? read : bytes;
        for (Set * set = sets; set < sets + num_sets; ++set) {
            const double products = set->present ? multiply_once(set) : 0.0;
            set->best = products > set->best ? products : set->best;
        }
    }
    printf("{\"bytes\": %.2f, \"products\": {", bytes);
    const char * between = "";
    for (const Set * set = sets; set < sets + num_sets; ++set) {
        if (set->present) {
            printf("%s\"%s\": %.1f", between, set->name, set->best);
            between = ", ";
        }
    }
    printf("}}\n");
    free(memory);
    return 0;
}
