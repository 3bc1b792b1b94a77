#include "kernels/block.hpp"

#include <cmath>
#include <cstring>

#include "kernels/grids.hpp"

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

// The scales of NVFP4 are numbers without a sign. The byte of what is no number stands for 0.
void take_nvfp4(const uint8_t * source, Block & block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = static_cast<int8_t>(source[i] == 0x7F ? 0 : source[i] & 0x7F);
        for (int k = 0; k < 8; ++k) {
            const uint8_t two = source[4 + 8 * i + k];
            block.codes[16 * i + k] = two & 15;
            block.codes[16 * i + 8 + k] = two >> 4;
        }
    }
}

void take_q1_0(const uint8_t * source, Block & block) {
    block.d = read16(source);
    for (int i = 0; i < 128; ++i) {
        block.codes[i] = (source[2 + i / 8] >> (i % 8)) & 1;
    }
}

void take_q2_0(const uint8_t * source, Block & block) {
    block.d = read16(source);
    for (int i = 0; i < 64; ++i) {
        block.codes[i] = (source[2 + i / 4] >> (2 * (i % 4))) & 3;
    }
}

void take_tq2_0(const uint8_t * __restrict source, Block & __restrict block) {
    split_pairs(source, block.codes);
    block.d = read16(source + 64);
}

// Splits bytes into digits of base 3: the first digit of each byte, then the second of each, and so on. A byte holds
// its number, divided by 243, as a fraction of 256.
uint8_t * split_thirds(const uint8_t * bytes, int count, int digits, uint8_t * codes) {
    int power = 1;
    for (int digit = 0; digit < digits; ++digit, power *= 3) {
        for (int i = 0; i < count; ++i) {
            const int left = bytes[i] * power & 0xFF;
            *codes++ = static_cast<uint8_t>(left * 3 >> 8);
        }
    }
    return codes;
}

void take_tq1_0(const uint8_t * source, Block & block) {
    uint8_t * codes = split_thirds(source, 32, 5, block.codes);
    codes = split_thirds(source + 32, 16, 5, codes);
    split_thirds(source + 48, 4, 4, codes);
    block.d = read16(source + 52);
}

uint32_t read32(const uint8_t * at) { return read16(at) | static_cast<uint32_t>(read16(at + 2)) << 16; }

// The signs of eight values: seven bits, and an eighth that makes the number of ones even.
uint32_t whole_signs(uint32_t seven) {
    uint32_t folded = seven ^ (seven >> 4);
    folded ^= folded >> 2;
    folded ^= folded >> 1;
    return seven | (folded & 1) << 7;
}

// Takes four times seven signs out of the low 28 bits of a number.
uint32_t all_signs(uint32_t coded) {
    uint32_t signs = 0;
    for (int i = 0; i < 4; ++i) {
        signs |= whole_signs(coded >> (7 * i) & 127) << (8 * i);
    }
    return signs;
}

// Takes nibbles, the lower half of a byte first.
void take_nibbles(const uint8_t * source, int count, Block & block) {
    for (int i = 0; i < count; ++i) {
        block.scales[i] = static_cast<int8_t>((source[i / 2] >> (4 * (i % 2))) & 15);
    }
}

void take_iq2_xxs(const uint8_t * source, Block & block) {
    for (int part = 0; part < 8; ++part, source += 8) {
        for (int i = 0; i < 4; ++i) {
            block.entries[4 * part + i] = source[i];
        }
        const uint32_t coded = read32(source + 4);
        block.signs[part] = all_signs(coded);
        block.scales[part] = static_cast<int8_t>(coded >> 28);
    }
}

void take_iq2_xs(const uint8_t * source, Block & block) {
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 4; ++i) {
            const uint16_t coded = read16(source + 8 * part + 2 * i);
            block.entries[4 * part + i] = coded & 511;
            block.signs[part] |= whole_signs(coded >> 9) << (8 * i);
        }
    }
    take_nibbles(source + 64, 16, block);
}

void take_iq2_s(const uint8_t * source, Block & block) {
    for (int part = 0; part < 8; ++part) {
        const int high = source[64 + part];
        for (int i = 0; i < 4; ++i) {
            block.entries[4 * part + i] = static_cast<uint16_t>(source[4 * part + i] | (high >> (2 * i) & 3) << 8);
        }
        block.signs[part] = read32(source + 32 + 4 * part);
    }
    take_nibbles(source + 72, 16, block);
}

void take_iq3_xxs(const uint8_t * source, Block & block) {
    for (int i = 0; i < 64; ++i) {
        block.entries[i] = source[i];
    }
    for (int part = 0; part < 8; ++part) {
        const uint32_t coded = read32(source + 64 + 4 * part);
        block.signs[part] = all_signs(coded);
        block.scales[part] = static_cast<int8_t>(coded >> 28);
    }
}

void take_iq3_s(const uint8_t * source, Block & block) {
    for (int part = 0; part < 8; ++part) {
        const int high = source[64 + part];
        for (int i = 0; i < 8; ++i) {
            block.entries[8 * part + i] = static_cast<uint16_t>(source[8 * part + i] | (high >> i & 1) << 8);
        }
        block.signs[part] = read32(source + 72 + 4 * part);
    }
    take_nibbles(source + 104, 8, block);
}

void take_grid(QuantizedType type, const uint8_t * source, Block & block) {
    std::memset(block.signs, 0, sizeof block.signs);
    block.d = read16(source);
    switch (type) {
        case QuantizedType::iq2_xxs:
            return take_iq2_xxs(source + 2, block);
        case QuantizedType::iq2_xs:
            return take_iq2_xs(source + 2, block);
        case QuantizedType::iq2_s:
            return take_iq2_s(source + 2, block);
        case QuantizedType::iq3_xxs:
            return take_iq3_xxs(source + 2, block);
        default:
            return take_iq3_s(source + 2, block);
    }
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
    if (layout_of(type).is_grid()) {
        return take_grid(type, source, block);
    }
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
        case QuantizedType::nvfp4:
            return take_nvfp4(source, block);
        case QuantizedType::q1_0:
            return take_q1_0(source, block);
        case QuantizedType::q2_0:
            return take_q2_0(source, block);
        case QuantizedType::tq1_0:
            return take_tq1_0(source, block);
        case QuantizedType::tq2_0:
            return take_tq2_0(source, block);
        case QuantizedType::f16:
        case QuantizedType::bf16:
            std::memcpy(block.codes, source, 64);
            return;
        default:
            return take_small(type, source, block);
    }
}

namespace {

// The value `index` of a block, before its offset is subtracted.
int value_of(QuantizedType type, const Block & block, int index) {
    const Layout layout = layout_of(type);
    const int code = block.codes[index];
    if (layout.is_grid()) {
        const uint32_t * entry = grid_of(type) + block.entries[index / layout.entry] * (layout.entry / 4);
        const auto magnitude = static_cast<int>(entry[index % layout.entry / 4] >> (8 * (index % 4)) & 0xFF);
        return (block.signs[index / 32] >> (index % 32) & 1) != 0 ? -magnitude : magnitude;
    }
    if (layout.is_table()) {
        return (layout.codes == Codes::fp4 ? kFp4Values : kIq4Values)[code];
    }
    return layout.is_signed ? static_cast<int8_t>(code) : layout.low_bits == 1 ? 2 * code : code;
}

}  // namespace

void dequantize(QuantizedType type, const Block & block, double * values) {
    const Layout layout = layout_of(type);
    const double d = layout.has_d() ? scale_of(layout, block.d) : 1.0;
    const double dmin = half_to_float(block.dmin);
    for (int i = 0; i < layout.values; ++i) {
        if (layout.is_float()) {
            values[i] = float_at(layout, block.codes + 2 * i);
            continue;
        }
        const int group = layout.span == 0 ? 0 : i / layout.span;
        const double scale = layout.span == 0 ? 1.0 : scale_of_span(layout.scales, block.scales[group]);
        values[i] = d * scale * (value_of(type, block, i) - layout.offset);
        if (layout.kind == Offset::minimum) {
            values[i] -= dmin * block.minima[group];
        } else if (layout.kind == Offset::added) {
            values[i] += dmin;
        }
    }
}

float scale_of(const Layout & layout, uint16_t d) {
    if (layout.codes != Codes::fp4) {
        return half_to_float(d) * (layout.is_grid() ? grid_factor(layout) : 1.0F);
    }
    return brain_to_float(d);
}

float scale_of_span(Scales scales, int8_t code) {
    switch (scales) {
        case Scales::float8:
            return half_to_float(static_cast<uint16_t>(code << 7)) * kFloat8Factor;
        case Scales::nibbles:
        case Scales::in_signs:
            return static_cast<float>(2 * code + 1);
        default:
            return code;
    }
}

float float_at(const Layout & layout, const uint8_t * at) {
    const uint16_t bits = read16(at);
    return layout.codes == Codes::half ? half_to_float(bits) : brain_to_float(bits);
}

float brain_to_float(uint16_t brain) {
    const uint32_t bits = static_cast<uint32_t>(brain) << 16;
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
