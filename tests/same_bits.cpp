// Compares every instruction set that this processor has with plain C++, to the last bit: a program for processors that
// are emulated, where no Python runs. It says how much it compared, and ends with 1 at the first difference.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/instruction_set.hpp"
#include "kernels/matrix_product.hpp"
#include "kernels/pack.hpp"

namespace {

using namespace specllama::kernels;

std::mt19937 rng(1);
int compared = 0;

int upto(int end) { return static_cast<int>(rng() % static_cast<unsigned>(end)); }

float number() { return std::normal_distribution<float>()(rng); }

std::vector<float> numbers(int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float & one : made) {
        one = number();
    }
    return made;
}

// A float16 of a magnitude between 2^-6 and 2^-3, or 0.
uint16_t half() {
    if (upto(50) == 0) {
        return 0;
    }
    return static_cast<uint16_t>((upto(2) << 15) | ((9 + upto(3)) << 10) | upto(1024));
}

void require_same(const void * one, const void * other, std::size_t bytes, const char * set, const char * what) {
    ++compared;
    if (std::memcmp(one, other, bytes) != 0) {
        std::printf("%s differs from plain: %s\n", set, what);
        std::exit(1);
    }
}

// Where a block of a type has its float16 numbers.
std::vector<int> places_of_halves(QuantizedType type) {
    switch (type) {
        case QuantizedType::q4_1:
        case QuantizedType::q5_1:
        case QuantizedType::q4_k:
        case QuantizedType::q5_k:
            return {0, 2};
        case QuantizedType::q2_k:
            return {80, 82};
        case QuantizedType::q3_k:
            return {108};
        case QuantizedType::q6_k:
            return {208};
        case QuantizedType::tq1_0:
            return {52};
        case QuantizedType::tq2_0:
            return {64};
        case QuantizedType::mxfp4:
        case QuantizedType::nvfp4:
            return {};
        default:
            return {0};
    }
}

std::vector<uint8_t> rows_of(QuantizedType type, int64_t blocks) {
    const Layout layout = layout_of(type);
    std::vector<uint8_t> made(static_cast<std::size_t>(blocks * layout.block_bytes));
    for (uint8_t & byte : made) {
        byte = static_cast<uint8_t>(rng());
    }
    for (int64_t b = 0; b < blocks; ++b) {
        uint8_t * block = made.data() + b * layout.block_bytes;
        for (const int place : places_of_halves(type)) {
            const uint16_t value = half();
            std::memcpy(block + place, &value, sizeof value);
        }
        if (type == QuantizedType::mxfp4) {
            block[0] = static_cast<uint8_t>(120 + upto(12));  // an exponent
        }
        for (int i = 0; layout.is_float() && i < layout.values; ++i) {
            const float value = number();
            uint32_t bits = 0;
            std::memcpy(&bits, &value, sizeof bits);
            const uint16_t two = type == QuantizedType::f16 ? half() : static_cast<uint16_t>(bits >> 16);
            std::memcpy(block + 2 * i, &two, sizeof two);
        }
    }
    return made;
}

void compare_products(const InstructionSet & set) {
    for (int i = 0; i < kNumTypes; ++i) {
        const auto type = static_cast<QuantizedType>(i);
        for (int columns = 1; columns <= 2 * kMostColumns + 1; ++columns) {
            const int64_t rows = 1 + upto(40);
            const int64_t blocks = 1 + upto(5);
            const int64_t values = blocks * layout_of(type).values;
            const std::vector<uint8_t> weights = rows_of(type, rows * blocks);
            std::vector<uint8_t> panels(packed_bytes(type, rows, values) + 65536);  // what is prefetched is there
            pack(type, weights.data(), rows, values, 0, num_panels(rows), panels.data());
            const std::vector<float> x = numbers(columns * values);
            std::vector<float> found(static_cast<std::size_t>(columns * rows));
            std::vector<float> expected(found.size());
            multiply_packed(set, type, panels.data(), rows, x.data(), columns, values, found.data());
            multiply_packed(plain_set(), type, panels.data(), rows, x.data(), columns, values, expected.data());
            require_same(found.data(), expected.data(), 4 * found.size(), set.name, kTypeNames[i]);
        }
    }
}

void compare_quantized(const InstructionSet & set) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float special[] = {0.0F, -0.0F, NAN, infinity, -infinity, 1e-45F, 1e-38F, 3e38F, -3e38F, 0.5F};
    for (int i = 0; i < 4000; ++i) {
        std::vector<float> x = numbers(256);
        for (int k = upto(4) * (i % 2); k > 0; --k) {
            x[static_cast<std::size_t>(upto(256))] = special[upto(10)];
        }
        if (i % 7 == 0) {
            for (float & one : x) {
                one *= 1e-38F;
            }
        }
        QuantizedBlock found;
        QuantizedBlock expected;
        std::memset(static_cast<void *>(&found), 0, sizeof found);
        std::memset(static_cast<void *>(&expected), 0, sizeof expected);
        set.quantize(x.data(), 256, found.d[0], found.codes, found.sums);
        quantize_plain(x.data(), 256, expected.d[0], expected.codes, expected.sums);
        require_same(&found, &expected, sizeof found, set.name, "quantized activations");
    }
}

std::vector<uint8_t> cache_of(CacheType type, int64_t count) {
    std::vector<uint8_t> made(static_cast<std::size_t>(cache_bytes(type, count)));
    for (int64_t i = 0; i < count; ++i) {
        if (type == CacheType::single) {
            const float one = number();
            std::memcpy(made.data() + 4 * i, &one, 4);
        } else if (type == CacheType::half) {
            const uint16_t one = half();
            std::memcpy(made.data() + 2 * i, &one, 2);
        } else {
            uint8_t * block = made.data() + i / kBlockValues * block_bytes(type);
            block[2 + i % (block_bytes(type) - 2)] = static_cast<uint8_t>(rng());
            const uint16_t one = half();
            std::memcpy(block, &one, 2);
        }
    }
    return made;
}

void compare_attention(const InstructionSet & set, CacheType type) {
    const int64_t length = 64 + 64 * upto(2);
    const int64_t cells = 16 * (1 + upto(16));
    const std::vector<uint8_t> keys = cache_of(type, cells * length);
    const std::vector<uint8_t> values = cache_of(type, cells * length);
    const int count = 1 + upto(kMostQueries);
    const std::vector<float> vectors = numbers(count * length);
    std::vector<uint16_t> masks(static_cast<std::size_t>(count * cells));
    for (uint16_t & one : masks) {
        one = upto(3) == 0 ? kHidden : 0;
    }
    const int64_t stride = cache_bytes(type, length);
    Queries queries = {{keys.data(), stride},
                       {values.data(), stride},
                       length,
                       length,
                       0.125F,
                       upto(2) == 0 ? 0.0F : 30.0F,
                       count,
                       {},
                       {},
                       {}};
    for (int q = 0; q < count; ++q) {
        queries.vectors[q] = vectors.data() + q * length;
        queries.masks[q] = reinterpret_cast<const uint8_t *>(masks.data() + q * cells);
        queries.slopes[q] = 1.0F;
    }
    const auto bytes = static_cast<std::size_t>(count * Partial::bytes(length));
    std::vector<uint8_t> found(bytes);
    std::vector<uint8_t> expected(bytes);
    set.floats.attend_to(type)(queries, 0, cells, 0, found.data());
    plain_set().floats.attend_to(type)(queries, 0, cells, 0, expected.data());
    require_same(found.data(), expected.data(), bytes, set.name, "attention");
    for (const bool swapped : {false, true}) {
        std::vector<uint8_t> one = found;
        std::vector<uint8_t> other = found;
        const std::size_t last = static_cast<std::size_t>(count - 1) * static_cast<std::size_t>(Partial::bytes(length));
        const std::size_t into = swapped ? last : 0;
        const auto & from = *reinterpret_cast<const Partial *>(found.data() + (swapped ? 0 : last));
        set.floats.merge(*reinterpret_cast<Partial *>(one.data() + into), from, length);
        plain_set().floats.merge(*reinterpret_cast<Partial *>(other.data() + into), from, length);
        require_same(one.data(), other.data(), bytes, set.name, "merged attention");
    }
    std::vector<float> sums(static_cast<std::size_t>(count * cells));
    std::vector<float> expected_sums(sums.size());
    float * out[kMostQueries];
    float * expected_out[kMostQueries];
    for (int q = 0; q < count; ++q) {
        out[q] = sums.data() + q * cells;
        expected_out[q] = expected_sums.data() + q * cells;
    }
    set.floats.multiply_rows_of(type)(queries.keys, cells, queries.vectors, count, length, out);
    plain_set().floats.multiply_rows_of(type)(queries.keys, cells, queries.vectors, count, length, expected_out);
    require_same(sums.data(), expected_sums.data(), 4 * sums.size(), set.name, "products with a cache");
}

void compare_states(const InstructionSet & set, bool is_delta, bool has_decays) {
    const int64_t length = 16 * (1 + upto(8));
    const int64_t rows = 1 + upto(20);
    const int count = 1 + upto(4);
    const std::vector<float> state = numbers(rows * length);
    std::vector<float> decays = numbers(count * length);
    for (float & one : decays) {
        one = 1.0F / (1.0F + one * one);
    }
    const std::vector<float> keys = numbers(count * length);
    const std::vector<float> queries = numbers(count * length);
    const std::vector<float> values = numbers(count * rows);
    std::vector<float> results[2];
    for (int which = 0; which < 2; ++which) {
        std::vector<float> & all = results[which];
        all.assign(static_cast<std::size_t>(rows * length * (1 + count) + rows * count), 0.0F);
        std::vector<StateStep> steps;
        for (int i = 0; i < count; ++i) {
            steps.push_back({decays.data() + i * length, keys.data() + i * length, queries.data() + i * length,
                             values.data() + i * rows, 0.5F, all.data() + rows * length * (1 + count) + i * rows,
                             all.data() + rows * length * (1 + i)});
        }
        const HeadState head = {state.data(), all.data(), rows, length, 0.25F, is_delta, has_decays};
        (which == 0 ? set : plain_set()).floats.update_state(head, steps.data(), count);
    }
    require_same(results[0].data(), results[1].data(), 4 * results[0].size(), set.name, "updated states");
}

}  // namespace

int main(int argc, char ** argv) {
    const InstructionSet * sets[kMostSets];
    const int count = usable_sets(sets);
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
    for (int i = 0; i + 1 < count; ++i) {
        compare_quantized(*sets[i]);
        for (int round = 0; round < rounds; ++round) {
            compare_products(*sets[i]);
            for (const CacheType type :
                 {CacheType::half, CacheType::single, CacheType::q8, CacheType::q4, CacheType::iq4}) {
                compare_attention(*sets[i], type);
            }
            compare_states(*sets[i], true, true);
            compare_states(*sets[i], true, false);
            compare_states(*sets[i], false, false);
        }
        std::printf("%s\n", sets[i]->name);
    }
    std::printf("%d comparisons\n", compared);
    return 0;
}
