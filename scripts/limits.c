// What two numbers of a machine are that decoding and prompts can come near: `cc -O3 -march=native -fopenmp`.
// Prints the bytes that all threads together read from memory in a nanosecond, and the products of 8-bit integers that
// they do in a nanosecond, with the instruction that the kernels use. See limits.py.
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, CHAINS = 16 };
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
    return sum == 1 ? 0.0 : (double)kBytes / seconds * 1e-9;  // the sum is looked at: else nothing would be read
}

// Chains that do not wait for each other keep the units busy.
#if defined(__AVX512VNNI__)
#define INSTRUCTION "vpdpbusd, 512 bits"
enum { PRODUCTS = 64 };
static int run_chains(void) {
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
    int found = 0;
    for (int k = 0; k < CHAINS; ++k) {
        found += _mm512_reduce_add_epi32(sums[k]);
    }
    return found;
}
#else
#define INSTRUCTION "vpmaddubsw, vpmaddwd and vpaddd, 256 bits"
enum { PRODUCTS = 32 };
static int run_chains(void) {
    __m256i sums[CHAINS / 2];
    __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
    for (int k = 0; k < CHAINS / 2; ++k) {
        sums[k] = _mm256_setzero_si256();
    }
    for (long i = 0; i < 2 * kSteps; ++i) {
        for (int k = 0; k < CHAINS / 2; ++k) {
            __m256i pairs = _mm256_maddubs_epi16(a, b);
            __asm__ volatile("" : "+x"(pairs));
            sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs, ones));
        }
    }
    int found = 0;
    for (int k = 0; k < CHAINS / 2; ++k) {
        found += _mm256_extract_epi32(sums[k], 0);
    }
    return found;
}
#endif

static double multiply_once(void) {
    const double start = omp_get_wtime();
    int found = 0;
    int threads = 1;
#pragma omp parallel reduction(+ : found)
    {
        found += run_chains();
#pragma omp single
        threads = omp_get_num_threads();
    }
    const double seconds = omp_get_wtime() - start;
    return found == 1 ? 0.0 : (double)threads * (double)kSteps * CHAINS * PRODUCTS / seconds * 1e-9;
}

int main(void) {
    char * memory = malloc(kBytes);
    if (memory == NULL) {
        return 1;
    }
    memset(memory, 1, kBytes);
    double bytes = 0.0;
    double products = 0.0;
    for (int i = 0; i < REPEATS; ++i) {
        const double read = read_once(memory);
        const double multiplied = multiply_once();
        bytes = read > bytes ? read : bytes;
        products = multiplied > products ? multiplied : products;
    }
    printf("{\"bytes\": %.2f, \"products\": %.1f, \"instruction\": \"%s\"}\n", bytes, products, INSTRUCTION);
    free(memory);
    return 0;
}
