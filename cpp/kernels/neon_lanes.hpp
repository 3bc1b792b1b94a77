// NEON: four registers of 128 bits hold one step of all rows of a panel, and two a step of half of them. The rules of
// panel_product.hpp hold here, too.
#pragma once

#include <arm_neon.h>

#include "kernels/float_lanes.hpp"
#include "kernels/panel_product.hpp"

namespace specllama::kernels {

namespace {

// registers: 4 for all rows, 2 for half of them; from: the first register of those that hold all rows.
template <int registers, int from>
struct NeonRows {
    static constexpr int kRegisters = registers;
    struct Lanes {
        int32x4_t at[kRegisters];
    };
    struct Floats {
        float32x4_t at[kRegisters];
    };

    // How many columns are multiplied at once. Sums of four columns fit into the registers for half of the rows.
    static constexpr int columns_at_once(const Layout & /*layout*/) { return 4; }
    static constexpr bool kSignedProducts = true;
    static constexpr bool kHoldsAllSums = registers == 2;
    static constexpr bool kIndexesSteps = true;

    template <class Result, class Function>
    static Result each(Function function) {
        Result made;
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            made.at[i] = function(i);
        }
        return made;
    }
    template <class Function>
    static Lanes lanes(Function function) {
        return each<Lanes>(function);
    }
    template <class Function>
    static Floats floats(Function function) {
        return each<Floats>(function);
    }
    static uint8x16_t bytes(int32x4_t lanes) { return vreinterpretq_u8_s32(lanes); }
    static int16x8_t words(int32x4_t lanes) { return vreinterpretq_s16_s32(lanes); }
    static int32x4_t lanes_of(uint8x16_t bytes) { return vreinterpretq_s32_u8(bytes); }

    static Lanes load(const uint8_t * at) {
        return lanes([&](int i) { return lanes_of(vld1q_u8(at + 16 * (from + i))); });
    }
    static Lanes spread(int32_t value) {
        return lanes([&](int /*i*/) { return vdupq_n_s32(value); });
    }
    static Floats spread(float value) {
        return floats([&](int /*i*/) { return vdupq_n_f32(value); });
    }
    // One step of one column, which all rows are multiplied with.
    static int8x16_t spread_step(int32_t value) { return vreinterpretq_s8_s32(vdupq_n_s32(value)); }
    // Moves each byte down by `down` bits (up, if `down` is negative), and masks it.
    static Lanes bits(const Lanes & codes, int down, int mask) {
        const int8x16_t up = vdupq_n_s8(static_cast<int8_t>(-down));
        return lanes([&](int i) {
            const uint8x16_t moved = down == 0 ? bytes(codes.at[i]) : vshlq_u8(bytes(codes.at[i]), up);
            return lanes_of(vandq_u8(moved, vdupq_n_u8(static_cast<uint8_t>(mask))));
        });
    }
    static Lanes either(const Lanes & a, const Lanes & b) {
        return lanes([&](int i) { return vorrq_s32(a.at[i], b.at[i]); });
    }
    static Lanes common(const Lanes & a, int32_t mask) {
        return lanes([&](int i) { return vandq_s32(a.at[i], vdupq_n_s32(mask)); });
    }
    static Lanes differing(const Lanes & a, const Lanes & b) {
        return lanes([&](int i) { return veorq_s32(a.at[i], b.at[i]); });
    }
    // Down, if `up` is negative.
    static Lanes shift_up(const Lanes & a, int up) {
        return lanes(
            [&](int i) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.at[i]), vdupq_n_s32(up))); });
    }
    static Lanes shift_down(const Lanes & a, int down) { return shift_up(a, -down); }
    // A byte of each row, as 16 bits.
    static uint16x4_t four_bytes(const uint8_t * at, int i) {
        const uint16x8_t all = vmovl_u8(vld1_u8(at + 8 * ((from + i) / 2)));
        return (from + i) % 2 == 0 ? vget_low_u16(all) : vget_high_u16(all);
    }
    static Lanes widen_bytes(const uint8_t * at) {
        return lanes([&](int i) { return vreinterpretq_s32_u32(vmovl_u16(four_bytes(at, i))); });
    }
    static Lanes add_bytes(const Lanes & a, const Lanes & b) {
        return lanes([&](int i) { return lanes_of(vaddq_u8(bytes(a.at[i]), bytes(b.at[i]))); });
    }
    // In which third of 256 each byte is: the highest two bits of three quarters of it.
    static Lanes thirds(const Lanes & a) {
        return lanes([&](int i) {
            const uint8x16_t all = bytes(a.at[i]);
            return lanes_of(vshrq_n_u8(vhaddq_u8(all, vshrq_n_u8(all, 1)), 6));
        });
    }
    // Entries of a table of four bytes.
    static Lanes gather_fours(const uint32_t * table, const Lanes & indices) {
        int32_t index[4 * kRegisters];
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            vst1q_s32(index + 4 * i, indices.at[i]);
        }
        return lanes([&](int i) {
            const uint32_t four[4] = {table[index[4 * i]], table[index[4 * i + 1]], table[index[4 * i + 2]],
                                      table[index[4 * i + 3]]};
            return vreinterpretq_s32_u32(vld1q_u32(four));
        });
    }
    // The first and the last four bytes of entries of eight bytes.
    static void gather_eights(const uint32_t * table, const Lanes & indices, Lanes & first, Lanes & second) {
        int32_t index[4 * kRegisters];
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            vst1q_s32(index + 4 * i, indices.at[i]);
        }
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            const uint32x2_t a = vld1_u32(table + 2 * index[4 * i]);
            const uint32x2_t b = vld1_u32(table + 2 * index[4 * i + 1]);
            const uint32x2_t c = vld1_u32(table + 2 * index[4 * i + 2]);
            const uint32x2_t d = vld1_u32(table + 2 * index[4 * i + 3]);
            first.at[i] = vreinterpretq_s32_u32(vcombine_u32(vzip1_u32(a, b), vzip1_u32(c, d)));
            second.at[i] = vreinterpretq_s32_u32(vcombine_u32(vzip2_u32(a, b), vzip2_u32(c, d)));
        }
    }
    static void store_lanes(uint8_t * at, const Lanes & values) {
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            vst1q_u8(at + 16 * (from + i), bytes(values.at[i]));
        }
    }
    static Floats load_floats(const uint8_t * at) {
        return floats([&](int i) { return vreinterpretq_f32_u8(vld1q_u8(at + 16 * (from + i))); });
    }
    // Negates the bytes whose sign is set. signs: four bytes for each row, with the signs of eight values each. The
    // bytes are the half `half` of the eight values `eight`.
    static Lanes negate(const Lanes & values, const Lanes & signs, int eight, int half) {
        static constexpr uint8_t kPlaces[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
        const uint8x16_t places = vaddq_u8(vld1q_u8(kPlaces), vdupq_n_u8(static_cast<uint8_t>(eight)));
        const uint8x16_t chosen = vreinterpretq_u8_u32(vdupq_n_u32(half == 0 ? 0x08040201U : 0x80402010U));
        return lanes([&](int i) {
            const uint8x16_t is_set = vtstq_u8(vqtbl1q_u8(bytes(signs.at[i]), places), chosen);
            return lanes_of(vsubq_u8(veorq_u8(bytes(values.at[i]), is_set), is_set));
        });
    }
    static Lanes shuffle(const Lanes & table, const Lanes & indices) {
        return lanes([&](int i) { return lanes_of(vqtbl1q_u8(bytes(table.at[i]), bytes(indices.at[i]))); });
    }
    static Lanes add(const Lanes & a, const Lanes & b) {
        return lanes([&](int i) { return vaddq_s32(a.at[i], b.at[i]); });
    }
    // The sums of the products of two words each.
    static Lanes dot_words(const Lanes & a, const Lanes & b) {
        return lanes([&](int i) {
            const int32x4_t low = vmull_s16(vget_low_s16(words(a.at[i])), vget_low_s16(words(b.at[i])));
            return vpaddq_s32(low, vmull_high_s16(words(a.at[i]), words(b.at[i])));
        });
    }
    static Lanes add_dot_words(const Lanes & sum, const Lanes & a, const Lanes & b) {
        return add(sum, dot_words(a, b));
    }
    static Lanes dot_bytes(const Lanes & sum, const Lanes & codes, int8x16_t x) {
        return lanes([&](int i) { return vdotq_s32(sum.at[i], vreinterpretq_s8_s32(codes.at[i]), x); });
    }
    // Adds the products of one step of two to four columns, which stand side by side, to their sums. It reads 16 bytes:
    // more follow in a tile.
    template <int width>
    static void dot_columns(Lanes (&sums)[width], const Lanes & codes, const uint8_t * step) {
        static_assert(width >= 2 && width <= 4);
        const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(step));
        sums[0] = dot_column<0>(sums[0], codes, x);
        sums[1] = dot_column<1>(sums[1], codes, x);
        if constexpr (width > 2) {
            sums[2] = dot_column<2>(sums[2], codes, x);
        }
        if constexpr (width > 3) {
            sums[3] = dot_column<3>(sums[3], codes, x);
        }
    }
    template <int column>
    static Lanes dot_column(const Lanes & sum, const Lanes & codes, int8x16_t x) {
        return lanes([&](int i) { return vdotq_laneq_s32(sum.at[i], vreinterpretq_s8_s32(codes.at[i]), x, column); });
    }
    static Lanes widen_signed(const uint8_t * at) {
        return lanes(
            [&](int i) { return vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(at + 8 * (from + i))))); });
    }
    static Lanes widen_unsigned(const uint8_t * at) {
        return lanes([&](int i) { return vreinterpretq_s32_u16(vmovl_u8(vld1_u8(at + 8 * (from + i)))); });
    }
    static Lanes low_nibbles(const Lanes & pairs) {
        return lanes([&](int i) { return vandq_s32(pairs.at[i], vdupq_n_s32(0x000F000F)); });
    }
    static Lanes high_nibbles(const Lanes & pairs) {
        return lanes([&](int i) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(pairs.at[i]), 4)); });
    }
    static Lanes word(const Lanes & pairs, int which) {
        return lanes([&](int i) { return vshrq_n_s32(which == 0 ? vshlq_n_s32(pairs.at[i], 16) : pairs.at[i], 16); });
    }
    // Does nothing: there are 32 registers, so the compiler may choose the order of additions.
    static void keep(Lanes & /*lanes*/) {}
    static Floats to_floats(const Lanes & sums) {
        return floats([&](int i) { return vcvtq_f32_s32(sums.at[i]); });
    }
    static float32x4_t load_four_halves(const uint8_t * at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }
    static Floats load_halves(const uint8_t * at) {
        return floats([&](int i) { return load_four_halves(at + 8 * (from + i)); });
    }
    static float32x4_t load_four_float8(uint16x4_t bytes) {
        return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(bytes, 7)));
    }
    static Floats load_float8(const uint8_t * at) {
        return floats([&](int i) { return load_four_float8(four_bytes(at, i)); });
    }
    // Floats of which only the first 16 bits are stored; the other 16 bits are 0.
    static Floats load_first_halves(const uint8_t * at) {
        return floats([&](int i) {
            return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at + 8 * (from + i))), 16));
        });
    }
    static Floats multiply(const Floats & a, const Floats & b) {
        return floats([&](int i) { return vmulq_f32(a.at[i], b.at[i]); });
    }
    static Floats add_product(const Floats & a, const Floats & b, const Floats & c) {
        return floats([&](int i) { return vfmaq_f32(c.at[i], a.at[i], b.at[i]); });
    }
    static Floats subtract_product(const Floats & a, const Floats & b, const Floats & c) {
        return floats([&](int i) { return vfmsq_f32(c.at[i], a.at[i], b.at[i]); });
    }
    static void store(float * at, const Floats & values) {
        SPECLLAMA_UNROLL
        for (int i = 0; i < kRegisters; ++i) {
            vst1q_f32(at + 4 * (from + i), values.at[i]);
        }
    }
    static Lanes table(const int8_t (&values)[16]) {
        const int32x4_t all = vreinterpretq_s32_s8(vld1q_s8(values));
        return lanes([&](int /*i*/) { return all; });
    }
    static Lanes fp4_values() { return table(kFp4Values); }
    static Lanes iq4_values() { return table(kIq4Values); }
};

using NeonLanes = NeonRows<4, 0>;

// The product of a panel with some columns. With several, the sums of all rows do not fit into the registers: then it
// is made for half of the rows, and then for the others.
//
// Dots: made of the rows.
template <template <class> class Dots, int type, int columns>
void multiply_in_registers(const uint8_t * panel, int64_t num_blocks, const uint8_t * tile, float * out,
                           int64_t stride) {
    if constexpr (columns == 1) {
        multiply_panel<Dots<NeonLanes>, type, columns>(panel, num_blocks, tile, out, stride);
    } else {
        multiply_panel<Dots<NeonRows<2, 0>>, type, columns>(panel, num_blocks, tile, out, stride);
        multiply_panel<Dots<NeonRows<2, 2>>, type, columns>(panel, num_blocks, tile, out, stride);
    }
}

// The larger ones; b where a number is NaN, as on x86.
inline float32x4_t larger_of(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

// Folds four numbers into one, both halves into one at a time.
inline float total_of(float32x4_t four) {
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline float largest_of(float32x4_t four) {
    const float32x2_t low = vget_low_f32(four);
    const float32x2_t high = vget_high_f32(four);
    const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
    const float first = vget_lane_f32(two, 0);
    const float second = vget_lane_f32(two, 1);
    return first > second ? first : second;
}

// Sixteen floats in four registers.
struct NeonFloats : private NeonLanes {
    static constexpr int kRows = 2;
    static constexpr int kColumns = 2;
    using NeonLanes::add_product;
    using NeonLanes::Floats;
    using NeonLanes::load_halves;
    using NeonLanes::multiply;
    using NeonLanes::store;

    static Floats spread(float value) { return NeonLanes::spread(value); }
    static Floats load(const float * at) {
        return floats([&](int i) { return vld1q_f32(at + 4 * i); });
    }
    static Floats spread_half(const uint8_t * at) {
        uint16_t half = 0;
        __builtin_memcpy(&half, at, sizeof half);
        return spread(vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0));
    }
    static Floats load_bytes(const uint8_t * at) { return floats_of(vreinterpretq_s8_u8(vld1q_u8(at))); }
    // The values of 16 nibbles: the low or the high ones of 16 bytes.
    static Floats load_nibbles(const uint8_t * at, bool high, const int8_t (&values)[16]) {
        const uint8x16_t bytes = vld1q_u8(at);
        return floats_of(vqtbl1q_s8(vld1q_s8(values), high ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15))));
    }
    static Floats floats_of(int8x16_t all) {
        const int16x8_t low = vmovl_s8(vget_low_s8(all));
        const int16x8_t high = vmovl_high_s8(all);
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
    }
    static void stream(float * at, const Floats & values) { store(at, values); }
    static void finish_streams() {}
    static Floats add(const Floats & a, const Floats & b) {
        return floats([&](int i) { return vaddq_f32(a.at[i], b.at[i]); });
    }
    static Floats divide(const Floats & a, const Floats & b) {
        return floats([&](int i) { return vdivq_f32(a.at[i], b.at[i]); });
    }
    static Floats larger(const Floats & a, const Floats & b) {
        return floats([&](int i) { return larger_of(a.at[i], b.at[i]); });
    }
    static Floats nearest(const Floats & a) {
        return floats([&](int i) { return vrndnq_f32(a.at[i]); });
    }
    static Floats times_power_of_two(const Floats & a, const Floats & n) {
        return floats([&](int i) {
            const int32x4_t power = vshlq_n_s32(vcvtnq_s32_f32(n.at[i]), 23);
            return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.at[i]), power));
        });
    }
    static Floats zero_where_below(const Floats & x, const Floats & least, const Floats & a) {
        return floats([&](int i) {
            const uint32x4_t kept = vcgeq_f32(x.at[i], least.at[i]);
            return vreinterpretq_f32_u32(vandq_u32(kept, vreinterpretq_u32_f32(a.at[i])));
        });
    }
    static float first(const Floats & a) { return vgetq_lane_f32(a.at[0], 0); }
    static float total(const Floats & a) {
        return total_of(vaddq_f32(vaddq_f32(a.at[0], a.at[2]), vaddq_f32(a.at[1], a.at[3])));
    }
    static void store_totals(const Floats (&a)[kRows], float * at) {
        at[0] = total(a[0]);
        at[1] = total(a[1]);
    }
    static float largest(const Floats & a) {
        return largest_of(larger_of(larger_of(a.at[0], a.at[2]), larger_of(a.at[1], a.at[3])));
    }
};

// Gives the same result as quantize_plain.
inline void quantize_neon(const float * x, int values, float & d, int8_t * codes, int16_t * sums) {
    float32x4_t most = vdupq_n_f32(0.0F);
    for (int i = 0; i < values; i += 4) {
        most = larger_of(vabsq_f32(vld1q_f32(x + i)), most);
    }
    const float largest = largest_of(most);
    d = largest / 127.0F;
    const float inverse = largest > 0.0F ? 127.0F / largest : 0.0F;
    const float32x4_t limit = vdupq_n_f32(127.0F);
    for (int i = 0; i < values; i += 16) {
        int16x4_t four[4];
        SPECLLAMA_UNROLL
        for (int part = 0; part < 4; ++part) {
            const float32x4_t scaled = vrndnq_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * part), inverse));
            // NaN, and what is too large, gets the code -127.
            const uint32x4_t is_code = vcleq_f32(vabsq_f32(scaled), limit);
            four[part] = vmovn_s32(vbslq_s32(is_code, vcvtq_s32_f32(scaled), vdupq_n_s32(-127)));
        }
        const int8x16_t all =
            vcombine_s8(vmovn_s16(vcombine_s16(four[0], four[1])), vmovn_s16(vcombine_s16(four[2], four[3])));
        vst1q_s8(codes + i, all);
        sums[i / 16] = vaddlvq_s8(all);
    }
}

}  // namespace

}  // namespace specllama::kernels
