// The products for sets where one instruction multiplies the bytes of a register and adds them up, for any width of
// registers. The rules of panel_product.hpp hold here, too.
#pragma once

#include "kernels/grid_product.hpp"
#include "kernels/panel_product.hpp"

namespace specllama::kernels {

namespace {

// Adds products step by step.
//
// Base: the operations on registers, with dot_bytes(sum, codes, signed bytes); kSignedProducts: whether codes may be
// signed, too; kHoldsAllSums: whether the registers hold two sums of each column; kIndexesSteps: whether it has
// dot_columns, which takes the steps of several columns from one register.
template <class Base>
struct StepDots : Base {
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

    // The steps 2 * pair and 2 * pair + 1 of 32 values, as the instruction takes them.
    template <int type, class Values>
    static void two_factors(const Values & part, int pair, Lanes & first, Lanes & second) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        part.two_steps(pair, first, second);
        if constexpr (layout.is_signed && !layout.is_table()) {
            first = factors(first);
            second = factors(second);
        }
    }

    // Adds the products of one step to the sums of some columns.
    template <int columns, int width>
    static void add_step(Lanes code, const uint8_t * step, Lanes (&dot)[width]) {
        if constexpr (Base::kIndexesSteps && width > 1) {
            Base::dot_columns(dot, code, step);
        } else {
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                dot[c] = Base::dot_bytes(dot[c], code, Base::spread_step(int_at(step + 4 * c)));
                Base::keep(dot[c]);
            }
        }
    }

    // Adds the products of `count` pairs of steps to the sums of some columns.
    template <int type, int columns, int count, int width, class Values>
    static void add_pairs(const Values & part, int first, const uint8_t * tile, Lanes (&dot)[width]) {
        SPECLLAMA_UNROLL
        for (int i = 0; i < count; ++i) {
            const int pair = first + i;
            Lanes one = {};
            Lanes other = {};
            two_factors<type>(part, pair, one, other);
            add_step<columns>(one, tile + 8 * pair * columns, dot);
            add_step<columns>(other, tile + 4 * (2 * pair + 1) * columns, dot);
        }
    }
};

// Dots: StepDots, or another struct with add_pairs.
template <class Dots>
struct ByteDots : Dots {
    using typename Dots::Floats;
    using typename Dots::Lanes;

    // Adds the products of 16 values that share a scale.
    template <int type, int columns, int width, class Values>
    static void add_scaled_half(const Values & part, int span, const uint8_t * tile, const uint8_t * sums,
                                Floats (&weighted)[width]) {
        const int half = span % 2;
        const Floats scale = part.scale(half);
        if constexpr (Dots::kHoldsAllSums) {
            Lanes dot[width];
            begin<ByteDots, type, columns>(sums, span, dot);
            Dots::template add_pairs<type, columns, 2>(part, 2 * half, tile, dot);
            add_scaled(dot, scale, weighted);
        } else {
            add_half_by_columns<type, columns>(part, span, tile, sums, scale, weighted);
        }
    }

    // Does what add_scaled_half does, but column by column. The codes of the four steps stay in registers, so that more
    // columns share the work of unpacking.
    template <int type, int columns, int width, class Values>
    static void add_half_by_columns(const Values & part, int span, const uint8_t * tile, const uint8_t * sums,
                                    Floats scale, Floats (&weighted)[width]) {
        const int half = span % 2;
        Lanes code[4];
        SPECLLAMA_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
            Dots::template two_factors<type>(part, 2 * half + pair, code[2 * pair], code[2 * pair + 1]);
            Dots::keep(code[2 * pair]);
            Dots::keep(code[2 * pair + 1]);
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            Lanes dot = beginning<ByteDots, type, columns>(sums, span, c);
            SPECLLAMA_UNROLL
            for (int index = 0; index < 4; ++index) {
                const auto x = Dots::spread_step(int_at(tile + 4 * ((4 * half + index) * columns + c)));
                dot = Dots::dot_bytes(dot, code[index], x);
            }
            Dots::keep(dot);
            weighted[c] = Dots::add_product(Dots::to_floats(dot), scale, weighted[c]);
        }
    }

    template <int width>
    static void add_scaled(const Lanes (&dot)[width], Floats scale, Floats (&weighted)[width]) {
        for (int c = 0; c < width; ++c) {
            weighted[c] = Dots::add_product(Dots::to_floats(dot[c]), scale, weighted[c]);
        }
    }

    template <int width>
    static void clear(Floats (&sum)[width]) {
        for (int c = 0; c < width; ++c) {
            sum[c] = Dots::spread(0.0F);
        }
    }

    // Ends a group of values of the columns: adds its products to `weighted`, and begins the next group.
    template <int type, int columns, int width>
    static void end_group(const uint8_t * scales, int group, const Lanes (&dot)[width], Floats (&products)[width],
                          Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            if constexpr (layout.span == 0) {
                products[c] = Dots::to_floats(dot[c]);
            }
            if constexpr (layout.num_groups() == 1) {
                weighted[c] = products[c];
            } else {
                const Floats scale = Dots::spread(float_at(scales + 4 * (group * columns + c)));
                weighted[c] = Dots::add_product(products[c], scale, weighted[c]);
                products[c] = Dots::spread(0.0F);
            }
        }
    }

    // Adds the products of some digits of base 3, of which five share a byte.
    template <int columns, int width>
    static void add_thirds(Lanes left, int digits, const uint8_t * tile, Lanes (&dot)[width]) {
        SPECLLAMA_UNROLL
        for (int digit = 0; digit < digits; ++digit) {
            Dots::template add_step<columns>(Dots::thirds(left), tile + 4 * digit * columns, dot);
            left = Dots::add_bytes(left, Dots::add_bytes(left, left));
        }
    }

    template <int type, int columns, int width>
    static void weigh_thirds(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                             Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        constexpr int steps = layout.values / kStep;
        Lanes dot[width];
        begin<ByteDots, type, columns>(sums, 0, dot);
        for (int line = 0; line < steps / kThirds; ++line) {
            if (fetches) {
                __builtin_prefetch(panel + kAhead + 64 * line);
            }
            add_thirds<columns>(Dots::load(panel + 64 * line), kThirds, tile + 4 * kThirds * line * columns, dot);
        }
        constexpr int last = steps / kThirds;
        add_thirds<columns>(Dots::load(panel + 64 * last), steps % kThirds, tile + 4 * kThirds * last * columns, dot);
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            weighted[c] = Dots::to_floats(dot[c]);
        }
    }

    // Sets `weighted` to the products of one block with some columns, times the scales within the block.
    //
    // fetches: whether to prefetch weights that come later; tile, sums, scales: where the codes, the sums and the
    // scales of the first of these columns are.
    template <int type, int columns, int width>
    static void weigh(const uint8_t * panel, bool fetches, const uint8_t * tile, const uint8_t * sums,
                      const uint8_t * scales, Floats (&weighted)[width]) {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        constexpr int parts = layout.group / 32;  // of a group
        if constexpr (layout.codes == Codes::thirds) {
            weigh_thirds<type, columns>(panel, fetches, tile, sums, weighted);
            return;
        }
        [[maybe_unused]] Lanes dot[width];
        Floats group[width];
        clear(weighted);
        clear(group);
        for (int sub = 0; sub < layout.values / 32; ++sub) {
            if (fetches) {
                prefetch<type>(panel, sub);
            }
            const Part<ByteDots, type> part(panel, sub);
            const uint8_t * x = tile + 32 * columns * sub;
            if constexpr (layout.span == 16) {
                add_scaled_half<type, columns>(part, 2 * sub, x, sums, group);
                add_scaled_half<type, columns>(part, 2 * sub + 1, x, sums, group);
            } else {
                if (layout.span == 32 || sub % parts == 0) {
                    begin<ByteDots, type, columns>(sums, layout.span == 32 ? sub : sub / parts, dot);
                }
                Dots::template add_pairs<type, columns, 4>(part, 0, x, dot);
            }
            if constexpr (layout.span == 32) {
                add_scaled(dot, part.scale(0), group);
            }
            if ((sub + 1) % parts == 0) {
                end_group<type, columns>(scales, sub / parts, dot, group, weighted);
            }
        }
    }
};

}  // namespace

}  // namespace specllama::kernels
