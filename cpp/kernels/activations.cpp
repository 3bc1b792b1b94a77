#include "kernels/activations.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace specllama::kernels {

namespace {

void place_wide(const QuantizedBlock & block, int steps, int width, int column, uint8_t * tile) {
    for (int step = 0; step < steps; ++step) {
        const int8_t * codes = block.codes + kStep * step;
        const int16_t even[2] = {codes[0], codes[2]};
        const int16_t odd[2] = {codes[1], codes[3]};
        std::memcpy(tile + 4 * (2 * step * width + column), even, 4);
        std::memcpy(tile + 4 * ((2 * step + 1) * width + column), odd, 4);
    }
}

// Writes the sums of a column in pairs, each pair as one number, because the kernels read two sums at a time. If the
// two sums were written one by one, the processor would wait before it could read them as one number.
void place_sums(const QuantizedBlock & block, const Layout & layout, int width, uint8_t * at) {
    const int16_t * sums = block.sums;
    for (int pair = 0; pair < layout.num_scales() / 2; ++pair, at += 4 * width) {
        int first = *sums++;
        int second = *sums++;
        if (layout.span == 32) {
            first += second;
            second = *sums++;
            second += *sums++;
        }
        const uint32_t two = static_cast<uint16_t>(first) | static_cast<uint32_t>(second) << 16;
        std::memcpy(at, &two, sizeof two);
    }
}

void place_sums_of_groups(const QuantizedBlock & block, const Layout & layout, int width, uint8_t * at) {
    const int16_t * sums = block.sums;
    for (int group = 0; group < layout.num_groups(); ++group, sums += layout.group / 16) {
        const int32_t sum = std::accumulate(sums, sums + layout.group / 16, 0);
        std::memcpy(at + 4 * group * width, &sum, 4);
    }
}

void place_floats(const float * x, int values, int width, int column, uint8_t * tile) {
    for (int i = 0; i < values; ++i) {
        std::memcpy(tile + 4 * (i * width + column), x + i, 4);
    }
}

}  // namespace

void quantize_block(const Layout & layout, Quantize quantize, const float * x, QuantizedBlock & block) {
    block.x = x;
    if (!layout.is_float()) {
        for (int group = 0; group < layout.num_groups(); ++group) {
            const int first = group * layout.group;
            quantize(x + first, layout.group, block.d[group], block.codes + first, block.sums + first / 16);
        }
    }
}

void place(const Layout & layout, bool wide, const QuantizedBlock & block, int width, int column, uint8_t * tile) {
    if (layout.is_float()) {
        return place_floats(block.x, layout.values, width, column, tile);
    }
    const TileShape shape = tile_shape(layout, wide);
    const int steps = layout.values / kStep;
    if (wide) {
        place_wide(block, steps, width, column, tile);
    } else {
        for (int step = 0; step < steps; ++step) {
            std::memcpy(tile + 4 * (step * width + column), block.codes + kStep * step, 4);
        }
    }
    uint8_t * sums = tile + shape.code_bytes * width + 4 * column;
    if (layout.num_scales() == 0) {
        place_sums_of_groups(block, layout, width, sums);
    } else {
        place_sums(block, layout, width, sums);
    }
    for (int group = 0; group < layout.num_groups(); ++group) {
        std::memcpy(sums + (shape.sum_bytes + 4 * group) * width, &block.d[group], 4);
    }
}

void quantize_plain(const float * x, int values, float & d, int8_t * codes, int16_t * sums) {
    float largest = 0.0F;
    for (int i = 0; i < values; ++i) {
        largest = std::max(largest, std::fabs(x[i]));
    }
    d = largest / 127.0F;
    const float inverse = largest > 0.0F ? 127.0F / largest : 0.0F;
    std::memset(sums, 0, sizeof *sums * static_cast<std::size_t>(values / 16));
    for (int i = 0; i < values; ++i) {
        const float scaled = std::nearbyint(x[i] * inverse);
        // NaN fails this comparison, too, and gets the code -127. To convert NaN to an int would be undefined.
        const int code = scaled >= -127.0F && scaled <= 127.0F ? static_cast<int>(scaled) : -127;
        codes[i] = static_cast<int8_t>(code);
        sums[i / 16] = static_cast<int16_t>(sums[i / 16] + code);
    }
}

}  // namespace specllama::kernels
