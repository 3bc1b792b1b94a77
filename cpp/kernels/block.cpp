#include "kernels/block.hpp"

#include <cmath>
#include <cstring>

namespace specllama::kernels {

namespace {

// Pointers are __restrict: a compiler handles 16 bytes at a time only if it knows that writing a block changes no byte
// of the file.

uint16_t read16(const uint8_t * at) { return static_cast<uint16_t>(at[0] | (at[1] << 8)); }

// Splits 16 bytes into 32 codes: the low nibbles are the first 16 codes, the high nibbles the last 16.
void split_nibbles(const uint8_t * __restrict qs, uint8_t * __restrict codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = qs[i] & 15;
        codes[i + 16] = qs[i] >> 4;
    }
}

// Adds the fifth bits of 32 codes, which stand side by side in 4 bytes.
void add_fifth_bits(const uint8_t * bits, uint8_t * codes) {
    for (int i = 0; i < 4; ++i) {
        // Byte k of the word keeps bit k only; adding 0x7F carries into the byte's highest bit if bit k was set.
        const uint64_t chosen = bits[i] * 0x0101010101010101ULL & 0x8040201008040201ULL;
        const uint64_t fifth = ((chosen + 0x7F7F7F7F7F7F7F7FULL) | chosen) >> 3 & 0x1010101010101010ULL;
        uint64_t eight = 0;
        std::memcpy(&eight, codes + 8 * i, sizeof eight);
        eight |= fifth;
        std::memcpy(codes + 8 * i, &eight, sizeof eight);
    }
}

// Takes the 6-bit scales and minima of Q4_K and Q5_K out of 12 bytes.
void take_scales_and_minima(const uint8_t * packed, Block & block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = static_cast<int8_t>(packed[i] & 63);
        block.minima[i] = packed[i + 4] & 63;
        block.scales[i + 4] = static_cast<int8_t>((packed[i + 8] & 15) | ((packed[i] >> 6) << 4));
        block.minima[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
    }
}

// Splits 128 bytes into 256 codes. Each 32 bytes give 32 codes from their low nibbles, then 32 from their high nibbles.
void split_long_nibbles(const uint8_t * __restrict qs, uint8_t * __restrict codes) {
    for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
            codes[64 * part + i] = qs[32 * part + i] & 15;
            codes[64 * part + 32 + i] = qs[32 * part + i] >> 4;
        }
    }
}

// Splits 64 bytes into 256 two-bit codes. Each 32 bytes give 32 codes from their lowest two bits, then 32 from the next
// two bits, and so on.
void split_pairs(const uint8_t * __restrict qs, uint8_t * __restrict codes) {
    for (int half = 0; half < 2; ++half) {
        for (int part = 0; part < 4; ++part) {
            for (int i = 0; i < 32; ++i) {
                codes[128 * half + 32 * part + i] = (qs[32 * half + i] >> (2 * part)) & 3;
            }
        }
    }
}

void take_q2_k(const uint8_t * __restrict source, Block & __restrict block) {
    for (int i = 0; i < 16; ++i) {
        block.scales[i] = static_cast<int8_t>(source[i] & 15);
        block.minima[i] = source[i] >> 4;
    }
    split_pairs(source + 16, block.codes);
    block.d = read16(source + 80);
    block.dmin = read16(source + 82);
}

void take_q3_k(const uint8_t * __restrict source, Block & __restrict block) {
    split_pairs(source + 32, block.codes);
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; ++i) {
            uint8_t & code = block.codes[32 * part + i];
            code = static_cast<uint8_t>(code | (((source[i] >> part) & 1) << 2));
        }
    }
    const uint8_t * packed = source + 96;
    for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        block.scales[i] = static_cast<int8_t>((low | (high << 4)) - 32);
    }
    block.d = read16(source + 108);
}

void take_q4_k(const uint8_t * __restrict source, Block & __restrict block) {
    block.d = read16(source);
    block.dmin = read16(source + 2);
    take_scales_and_minima(source + 4, block);
    split_long_nibbles(source + 16, block.codes);
}

void take_q5_k(const uint8_t * __restrict source, Block & __restrict block) {
    block.d = read16(source);
    block.dmin = read16(source + 2);
    take_scales_and_minima(source + 4, block);
    split_long_nibbles(source + 48, block.codes);
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; ++i) {
            uint8_t & code = block.codes[32 * part + i];
            code = static_cast<uint8_t>(code | (((source[16 + i] >> part) & 1) << 4));
        }
    }
}

void take_q6_k(const uint8_t * __restrict source, Block & __restrict block) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t * low = source + 64 * half;
        const uint8_t * high = source + 128 + 32 * half;
        uint8_t * codes = block.codes + 128 * half;
        for (int i = 0; i < 32; ++i) {
            codes[i] = static_cast<uint8_t>((low[i] & 15) | ((high[i] & 3) << 4));
            codes[i + 32] = static_cast<uint8_t>((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4));
            codes[i + 64] = static_cast<uint8_t>((low[i] >> 4) | (((high[i] >> 4) & 3) << 4));
            codes[i + 96] = static_cast<uint8_t>((low[i + 32] >> 4) | ((high[i] >> 6) << 4));
        }
    }
    std::memcpy(block.scales, source + 192, 16);
    block.d = read16(source + 208);
}

void take_iq4_xs(const uint8_t * __restrict source, Block & __restrict block) {
    block.d = read16(source);
    const int high = read16(source + 2);
    for (int i = 0; i < 8; ++i) {
        const int low = (source[4 + i / 2] >> (4 * (i % 2))) & 15;
        block.scales[i] = static_cast<int8_t>((low | (((high >> (2 * i)) & 3) << 4)) - 32);
        split_nibbles(source + 8 + 16 * i, block.codes + 32 * i);
    }
}

// Takes an MXFP4 block apart. Its scale is a power of two. Here d is half of that scale, because kFp4Values holds twice
// the values.
void take_mxfp4(const uint8_t * source, Block & block) {
    const int power = source[0];
    block.d = static_cast<uint16_t>(power < 2 ? 0x20 << power : (power - 1) << 7);
    split_nibbles(source + 1, block.codes);
}

void take_small(QuantizedType type, const uint8_t * source, Block & block) {
    block.d = read16(source);
    switch (type) {
        case QuantizedType::q4_1:
            block.dmin = read16(source + 2);
            split_nibbles(source + 4, block.codes);
            break;
        case QuantizedType::q5_0:
            split_nibbles(source + 6, block.codes);
            add_fifth_bits(source + 2, block.codes);
            break;
        case QuantizedType::q5_1:
            block.dmin = read16(source + 2);
            split_nibbles(source + 8, block.codes);
            add_fifth_bits(source + 4, block.codes);
            break;
        case QuantizedType::q8_0:
            std::memcpy(block.codes, source + 2, 32);
            break;
        default:
            split_nibbles(source + 2, block.codes);
            break;  // Q4_0 and IQ4_NL
    }
}

}  // namespace

void take_apart(QuantizedType type, const uint8_t * source, Block & block) {
    switch (type) {
        case QuantizedType::q2_k:
            return take_q2_k(source, block);
        case QuantizedType::q3_k:
            return take_q3_k(source, block);
        case QuantizedType::q4_k:
            return take_q4_k(source, block);
        case QuantizedType::q5_k:
            return take_q5_k(source, block);
        case QuantizedType::q6_k:
            return take_q6_k(source, block);
        case QuantizedType::iq4_xs:
            return take_iq4_xs(source, block);
        case QuantizedType::mxfp4:
            return take_mxfp4(source, block);
        default:
            return take_small(type, source, block);
    }
}

void dequantize(QuantizedType type, const Block & block, double * values) {
    const Layout layout = layout_of(type);
    const double d = scale_of(layout, block.d);
    const double dmin = half_to_float(block.dmin);
    for (int i = 0; i < layout.values; ++i) {
        int code = block.codes[i];
        if (layout.is_table()) {
            code = (layout.codes == Codes::fp4 ? kFp4Values : kIq4Values)[code];
        } else if (layout.is_signed) {
            code = static_cast<int8_t>(block.codes[i]);
        }
        const int group = layout.span == 0 ? 0 : i / layout.span;
        const int scale = layout.span == 0 ? 1 : block.scales[group];
        values[i] = d * scale * (code - layout.offset);
        if (layout.kind == Offset::minimum) {
            values[i] -= dmin * block.minima[group];
        } else if (layout.kind == Offset::added) {
            values[i] += dmin;
        }
    }
}

float scale_of(const Layout & layout, uint16_t d) {
    if (layout.codes != Codes::fp4) {
        return half_to_float(d);
    }
    const uint32_t bits = static_cast<uint32_t>(d) << 16;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

float half_to_float(uint16_t half) {
    const int exponent = (half >> 10) & 31;
    const int fraction = half & 1023;
    const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
    if (exponent == 31) {
        return fraction != 0 ? NAN : sign * INFINITY;
    }
    if (exponent == 0) {
        return sign * std::ldexp(static_cast<float>(fraction), -24);
    }
    return sign * std::ldexp(static_cast<float>(fraction | 1024), exponent - 25);
}

}  // namespace specllama::kernels
