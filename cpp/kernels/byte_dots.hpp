// The products for sets where one instruction multiplies the bytes of a register and adds them up, for any width of
// registers. The rules of panel_product.hpp hold here, too.
#pragma once

#include "kernels/panel_product.hpp"

namespace specllama::kernels {

namespace {

// Base: the operations on registers, with dot_bytes(sum, codes, signed bytes); kSignedProducts: whether codes may be
// signed, too; kHoldsAllSums: whether the registers hold two sums of each column.
template <class Base>
struct ByteDots : Base {
    using typename Base::Floats;
    using typename Base::Lanes;

    static constexpr bool kWideSigned = false;

    // Signed bytes as the instruction takes them.
    static Lanes factors(Lanes bytes) {
        if constexpr (Base::kSignedProducts) {
            return bytes;
        } else {
            return Base::flip_signs(bytes);
        }
    }

    template <bool is_fp4>
    static Lanes look_up(Lanes codes) {
        return Base::shuffle(is_fp4 ? Base::fp4_values() : factors(Base::iq4_values()), codes);
    }

    template <int type>
    static Lanes factors_of_step(const uint8_t * codes, int half, int index) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        const Lanes code = step_of<ByteDots, type>(codes, half, index);
        return layout.is_signed && !layout.is_table() ? factors(code) : code;
    }

    // Adds the products of 16 values to the sums of some columns.
    template <int type, int columns, int width>
    static void add_half(const uint8_t * codes, int half, const uint8_t * tile, Lanes (&dot)[width]) {
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            const Lanes code = factors_of_step<type>(codes, half, index);
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                const auto x = Base::spread_step(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                dot[c] = Base::dot_bytes(dot[c], code, x);
                Base::keep(dot[c]);
            }
        }
    }

    // Adds the products of 16 values that share a scale.
    template <int type, int columns, int width>
    static void add_scaled_half(const uint8_t * codes, int half, const uint8_t * tile, Floats scale,
                                Floats (&weighted)[width]) {
        static_assert(!begins_below_zero<ByteDots, type>());
        if constexpr (Base::kHoldsAllSums) {
            Lanes dot[width];
            for (int c = 0; c < width; ++c) {
                dot[c] = Base::spread(int32_t{0});
            }
            add_half<type, columns>(codes, half, tile, dot);
            add_scaled(dot, scale, weighted);
        } else {
            add_half_by_columns<type, columns>(codes, half, tile, scale, weighted);
        }
    }

    // Does what add_scaled_half does, but column by column. The codes of the four steps stay in registers, so that more
    // columns share the work of unpacking.
    template <int type, int columns, int width>
    static void add_half_by_columns(const uint8_t * codes, int half, const uint8_t * tile, Floats scale,
                                    Floats (&weighted)[width]) {
        Lanes code[4];
        SPECLLAMA_UNROLL
        for (int index = 0; index < 4; ++index) {
            code[index] = factors_of_step<type>(codes, half, index);
            Base::keep(code[index]);
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            Lanes dot = Base::spread(int32_t{0});
            SPECLLAMA_UNROLL
            for (int index = 0; index < 4; ++index) {
                const auto x = Base::spread_step(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                dot = Base::dot_bytes(dot, code[index], x);
            }
            Base::keep(dot);
            weighted[c] = Base::add_product(Base::to_floats(dot), scale, weighted[c]);
        }
    }

    template <int width>
    static void add_scaled(const Lanes (&dot)[width], Floats scale, Floats (&weighted)[width]) {
        for (int c = 0; c < width; ++c) {
            weighted[c] = Base::add_product(Base::to_floats(dot[c]), scale, weighted[c]);
        }
    }

    // Sets `weighted` to the products of one block with some columns, times the scales within the block.
    //
    // fetches: whether to prefetch weights that come later; tile, sums: where the codes and the sums of the first of
    // these columns are.
    template <int type, int columns, int width>
    static void weigh(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                      Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        [[maybe_unused]] Lanes dot[width];
        for (int c = 0; c < width; ++c) {
            weighted[c] = Base::spread(0.0F);
        }
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const uint8_t * codes = panel + 64 * (layout.low_bits + layout.high_bits) * sub;
            const uint8_t * x = tile + 32 * columns * sub;
            if constexpr (layout.span != 16) {
                begin<ByteDots, type, columns>(sums, sub, dot);
            }
            if constexpr (layout.span == 0) {
                add_half<type, columns>(codes, 0, x, dot);
                add_half<type, columns>(codes, 1, x, dot);
                for (int c = 0; c < width; ++c) {
                    weighted[c] = Base::to_floats(dot[c]);
                }
            } else if constexpr (layout.span == 32) {
                const Lanes pairs = scales_of<ByteDots, type>(panel, sub / 2);
                add_half<type, columns>(codes, 0, x, dot);
                add_half<type, columns>(codes, 1, x, dot);
                add_scaled(dot, Base::to_floats(Base::word(pairs, sub % 2)), weighted);
            } else {
                const Lanes pairs = scales_of<ByteDots, type>(panel, sub);
                add_scaled_half<type, columns>(codes, 0, x, Base::to_floats(Base::word(pairs, 0)), weighted);
                add_scaled_half<type, columns>(codes, 1, x, Base::to_floats(Base::word(pairs, 1)), weighted);
            }
        }
    }
};

}  // namespace

}  // namespace specllama::kernels
