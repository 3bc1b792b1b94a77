// The products for sets where one instruction multiplies the bytes of a register and adds them up, for any width of
// registers. This file is included as x86_common.hpp is.
#pragma once

#include "kernels/x86_common.hpp"

namespace specllama::kernels {

namespace {

// Base: the operations on registers, with dot_bytes(sum, unsigned bytes, signed bytes).
template <class Base>
struct Vnni : Base {
    using typename Base::Floats;
    using typename Base::Lanes;

    // The instruction takes one factor as unsigned, so 128 is added to signed values.
    static constexpr bool kSignedProducts = false;

    template <bool is_fp4>
    static Lanes look_up(Lanes codes) {
        return Base::shuffle(is_fp4 ? Base::fp4_values() : Base::flip_signs(Base::iq4_values()), codes);
    }

    template <int type>
    static Lanes unsigned_step(const uint8_t * codes, int half, int index) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        const Lanes code = step_of<Vnni, type>(codes, half, index);
        return layout.is_signed && !layout.is_table() ? Base::flip_signs(code) : code;
    }

    // Adds the products of 16 values to the sums of all columns.
    template <int type, int columns>
    static void add_half(const uint8_t * codes, int half, const uint8_t * tile, Lanes (&dot)[columns]) {
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            const Lanes code = unsigned_step<type>(codes, half, index);
            SPECLLAMA_UNROLL
            for (int c = 0; c < columns; ++c) {
                const Lanes x = Base::spread(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                dot[c] = Base::dot_bytes(dot[c], code, x);
                Base::keep(dot[c]);
            }
        }
    }

    template <int columns>
    static void add_scaled(const Lanes (&dot)[columns], Floats scale, Floats (&weighted)[columns]) {
        for (int c = 0; c < columns; ++c) {
            weighted[c] = Base::add_product(Base::to_floats(dot[c]), scale, weighted[c]);
        }
    }

    template <int type, int columns>
    static void weigh(const uint8_t * panel, int first_row, const uint8_t * tile, Floats (&weighted)[columns]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        Lanes dot[columns];
        for (int c = 0; c < columns; ++c) {
            weighted[c] = Base::spread(0.0F);
        }
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            prefetch<Vnni, type>(panel, first_row, sub);
            const uint8_t * codes = panel + 64 * (layout.low_bits + layout.high_bits) * sub + 4 * first_row;
            const uint8_t * x = tile + 32 * columns * sub;
            begin<Vnni, type, columns>(tile, sub, dot);
            if constexpr (layout.span == 0) {
                add_half<type, columns>(codes, 0, x, dot);
                add_half<type, columns>(codes, 1, x, dot);
                for (int c = 0; c < columns; ++c) {
                    weighted[c] = Base::to_floats(dot[c]);
                }
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<Vnni, type>(panel, sub / 2, first_row);
                add_half<type, columns>(codes, 0, x, dot);
                add_half<type, columns>(codes, 1, x, dot);
                add_scaled<columns>(dot, Base::to_floats(Base::word(pairs, sub % 2)), weighted);
            } else {
                const Lanes pairs = scales_of<Vnni, type>(panel, sub, first_row);
                add_half<type, columns>(codes, 0, x, dot);
                add_scaled<columns>(dot, Base::to_floats(Base::word(pairs, 0)), weighted);
                begin<Vnni, type, columns>(tile, sub, dot);
                add_half<type, columns>(codes, 1, x, dot);
                add_scaled<columns>(dot, Base::to_floats(Base::word(pairs, 1)), weighted);
            }
        }
    }
};

}  // namespace

}  // namespace specllama::kernels
