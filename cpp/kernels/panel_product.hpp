// The product of a panel with a tile, for instruction sets that hold one step of all rows in registers (Isa::Lanes).
// This file is included by one .cpp for each set, which is compiled for the instructions of that set. So everything
// here is in an unnamed namespace and calls nothing of the standard library: no code of one set may be linked into
// another.
//
// An Isa has these constants. kSignedProducts: whether values of signed types are multiplied as they are; else 128 is
// added to them. kWideSigned: whether the tiles of these types are wide (see InstructionSet).
#pragma once

#include "kernels/grids.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama::kernels {

namespace {

inline float float_at(const uint8_t * at) {
    float value = 0.0F;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

inline int32_t int_at(const uint8_t * at) {
    int32_t value = 0;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

// How far ahead data is fetched. The processor's own prefetching stops at each page of 4 KB, and follows the reader too
// closely where much is computed with little data. On a Zen 3, with this prefetching, one core reads 15 instead of 10
// GB/s for one column, and four columns take half as long. From 8 KB on, the distance makes no difference.
constexpr int kAhead = 8192;  // bytes

// Fetches some lines ahead: the share that belongs to the 32 values `sub` of a block. If a whole block of
// 2 KB were fetched at once, the processor would wait. With shares, one core of a Zen 4 reads Q4_K at 25 instead of
// 18 GB/s, and eight columns take 0.6 of the time.
template <int type>
inline void prefetch(const uint8_t * panel, int sub) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    constexpr int shares = layout.values / 32;
    constexpr int lines = ((layout.panel_bytes() + 63) / 64 + shares - 1) / shares;
    SPECLLAMA_UNROLL
    for (int i = 0; i < lines; ++i) {
        __builtin_prefetch(panel + kAhead + 64 * (sub * lines + i));
    }
}

// Returns step 4 * half + index of 32 values of all rows: unsigned codes, or signed bytes if the type is signed.
template <class Isa, int type>
inline typename Isa::Lanes step_of(const uint8_t * codes, int half, int index) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    if constexpr (layout.low_bits == 8) {
        return Isa::load(codes + 64 * (4 * half + index));
    }
    constexpr bool nibbles = layout.low_bits == 4;
    if constexpr (layout.low_bits == 1) {
        return Isa::bits(Isa::load(codes), 4 * half + index - 1, 2);
    }
    typename Isa::Lanes code =
        Isa::bits(Isa::load(codes + 64 * (nibbles ? index : half)), nibbles ? 4 * half : 2 * index, nibbles ? 15 : 3);
    const uint8_t * high = codes + 64 * layout.low_bits;
    if constexpr (layout.high_bits == 1) {
        code = Isa::either(code, Isa::bits(Isa::load(high), 4 * half + index - layout.low_bits, 1 << layout.low_bits));
    } else if constexpr (layout.high_bits == 2) {
        code = Isa::either(code,
                           Isa::bits(Isa::load(high + 64 * half), 2 * index - layout.low_bits, 3 << layout.low_bits));
    }
    if constexpr (layout.is_table()) {
        return Isa::template look_up<layout.codes == Codes::fp4>(code);
    }
    return code;
}

// Returns the scales (or minima) 2 * pair and 2 * pair + 1 of all rows, as int16 side by side.
template <class Isa, int type>
inline typename Isa::Lanes scales_of(const uint8_t * panel, int pair) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    const uint8_t * at = panel + layout.scales_at() + 2 * kPanelRows * pair;
    if constexpr (layout.scales == Scales::with_minimum) {
        return Isa::low_nibbles(Isa::widen_unsigned(at));
    } else {
        return Isa::widen_signed(at);
    }
}

template <class Isa, int type>
inline typename Isa::Lanes minima_of(const uint8_t * panel, int pair) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    if constexpr (layout.kind != Offset::minimum) {
        return scales_of<Isa, type>(panel, pair);
    } else if constexpr (layout.scales == Scales::with_minimum) {
        return Isa::high_nibbles(Isa::widen_unsigned(panel + layout.scales_at() + 2 * kPanelRows * pair));
    } else {
        return Isa::widen_unsigned(panel + layout.minima_at() + 2 * kPanelRows * pair);
    }
}

// The part `sub` of a block: 32 values of all rows.
template <class Isa, int type, bool is_grid = layout_of(static_cast<QuantizedType>(type)).is_grid()>
class Part {
public:
    Part(const uint8_t * panel, int sub) : panel_(panel), sub_(sub) {}

    // The steps 2 * pair and 2 * pair + 1: unsigned codes, or signed bytes if the type is signed.
    void two_steps(int pair, typename Isa::Lanes & first, typename Isa::Lanes & second) const {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        const uint8_t * codes = panel_ + layout.part_bytes() * sub_;
        first = step_of<Isa, type>(codes, pair / 2, 2 * (pair % 2));
        second = step_of<Isa, type>(codes, pair / 2, 2 * (pair % 2) + 1);
    }

    // The scales of the half `half`, or of all values if they share one.
    typename Isa::Floats scale(int half) const {
        constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
        const int index = layout.span == 16 ? 2 * sub_ + half : sub_;
        if constexpr (layout.scales == Scales::float8) {
            const uint8_t * at = panel_ + layout.scales_at() + kPanelRows * index;
            return Isa::multiply(Isa::load_float8(at), Isa::spread(kFloat8Factor));
        } else {
            return Isa::to_floats(Isa::word(scales_of<Isa, type>(panel_, index / 2), index % 2));
        }
    }

private:
    const uint8_t * panel_;
    int sub_;
};

// The offset of a type: by how much its values are too large, as Isa multiplies them.
template <class Isa, int type>
constexpr int offset_of() {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    return layout.is_signed && !Isa::kSignedProducts ? 128 : layout.offset;
}

// Whether the offset is subtracted before products become floats. This happens if the type has no scales or scales that
// are floats, or if 128 was added to make values unsigned. Then the products of a span are the same in every
// instruction set, and so are all roundings after them.
template <class Isa, int type>
constexpr bool begins_below_zero() {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    return (layout.span == 0 || layout.is_signed || layout.scales == Scales::float8) && !layout.has_minimum() &&
           offset_of<Isa, type>() != 0;
}

// Returns the initial value of the sum of products of the span `span` of a block with the column `c`, or of the group
// `span` if there are no scales.
template <class Isa, int type, int columns>
inline typename Isa::Lanes beginning(const uint8_t * sums, int span, int c) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    constexpr int offset = offset_of<Isa, type>();
    if constexpr (!begins_below_zero<Isa, type>()) {
        return Isa::spread(int32_t{0});
    } else if constexpr (layout.span == 0) {
        return Isa::spread(-offset * int_at(sums + 4 * (span * columns + c)));
    } else {
        // The sums of two spans stand side by side, and one of them is used.
        const typename Isa::Lanes two = Isa::spread(int_at(sums + 4 * (span / 2 * columns + c)));
        return Isa::dot_words(two, Isa::spread(span % 2 == 0 ? -offset & 0xFFFF : -offset * 0x10000));
    }
}

// Sets `dot` to the initial values of the sums of some columns.
template <class Isa, int type, int columns, int width>
inline void begin(const uint8_t * sums, int span, typename Isa::Lanes (&dot)[width]) {
    SPECLLAMA_UNROLL
    for (int c = 0; c < width; ++c) {
        dot[c] = beginning<Isa, type, columns>(sums, span, c);
    }
}

// Computes for each column the sums of its activations, weighted by minima or scales. Codes are shifted (see Offset),
// and add_columns() uses these sums to correct the products for the shift.
template <class Isa, int type, int columns, int width>
inline void lower(const uint8_t * panel, const uint8_t * sums, typename Isa::Floats (&low)[width]) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    if constexpr (layout.num_scales() == 0) {
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            low[c] = Isa::spread(static_cast<float>(int_at(sums + 4 * c)));
        }
    } else {
        typename Isa::Lanes total[width];
        for (int c = 0; c < width; ++c) {
            total[c] = Isa::spread(int32_t{0});
        }
        for (int pair = 0; pair < layout.num_scales() / 2; ++pair) {
            const typename Isa::Lanes minima = minima_of<Isa, type>(panel, pair);
            SPECLLAMA_UNROLL
            for (int c = 0; c < width; ++c) {
                const typename Isa::Lanes two = Isa::spread(int_at(sums + 4 * (pair * columns + c)));
                total[c] = Isa::add_dot_words(total[c], minima, two);
            }
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            low[c] = Isa::to_floats(total[c]);
        }
    }
}

template <class Isa, int type>
inline typename Isa::Floats scales_of_blocks(const uint8_t * panel) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    const uint8_t * at = panel + layout.d_at();
    if constexpr (layout.codes == Codes::fp4) {
        return Isa::load_first_halves(at);
    } else if constexpr (layout.codes == Codes::expanded) {
        return Isa::load_floats(at);
    } else if constexpr (layout.is_grid() && grid_factor(layout) != 1.0F) {
        return Isa::multiply(Isa::load_halves(at), Isa::spread(grid_factor(layout)));
    } else {
        return Isa::load_halves(at);
    }
}

// Adds the products of one block to the sums of some columns of a tile, of which the first is `first`. If the columns
// have several scales in a block, Isa::weigh has multiplied by these already.
template <class Isa, int type, int columns, int first, int width>
inline void add_columns(const uint8_t * panel, const uint8_t * tile, typename Isa::Floats (&sum)[columns]) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    constexpr TileShape shape = tile_shape(layout, Isa::kWideSigned && layout.is_signed);
    constexpr int offset = offset_of<Isa, type>();
    const uint8_t * sums = tile + shape.code_bytes * columns + 4 * first;
    const uint8_t * scales = tile + (shape.code_bytes + shape.sum_bytes) * columns + 4 * first;
    typename Isa::Floats weighted[width];
    typename Isa::Floats low[width];
    Isa::template weigh<type, columns, width>(panel, first == 0, tile + 4 * first, sums, scales, weighted);
    typename Isa::Floats d = Isa::spread(1.0F);
    if constexpr (layout.has_d()) {
        d = scales_of_blocks<Isa, type>(panel);
    }
    if constexpr (layout.has_minimum()) {
        lower<Isa, type, columns>(panel, sums, low);
        const typename Isa::Floats dmin = Isa::load_halves(panel + layout.minimum_at());
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            const typename Isa::Floats scaled = Isa::multiply(d, weighted[c]);
            weighted[c] = layout.kind == Offset::minimum ? Isa::subtract_product(dmin, low[c], scaled)
                                                         : Isa::add_product(dmin, low[c], scaled);
        }
    } else {
        constexpr bool lowers = offset != 0 && !begins_below_zero<Isa, type>();
        if constexpr (lowers) {
            lower<Isa, type, columns>(panel, sums, low);
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            if constexpr (lowers) {
                weighted[c] = Isa::subtract_product(Isa::spread(static_cast<float>(offset)), low[c], weighted[c]);
            }
            weighted[c] = Isa::multiply(d, weighted[c]);
        }
    }
    SPECLLAMA_UNROLL
    for (int c = 0; c < width; ++c) {
        const float scale = layout.num_groups() > 1 ? 1.0F : float_at(scales + 4 * c);
        sum[first + c] = Isa::add_product(weighted[c], Isa::spread(scale), sum[first + c]);
    }
}

// Adds the products of 32 values to the sums of some columns, of weights that are floats: one value after the other.
template <class Isa, int type, int columns, int first, int width>
inline void add_floats(const uint8_t * panel, const uint8_t * tile, typename Isa::Floats (&sum)[columns]) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    for (int i = 0; i < layout.values; ++i) {
        const uint8_t * at = panel + 2 * kPanelRows * i;
        if (first == 0 && i % 2 == 0) {
            __builtin_prefetch(at + kAhead);
        }
        const typename Isa::Floats weights =
            layout.codes == Codes::half ? Isa::load_halves(at) : Isa::load_first_halves(at);
        SPECLLAMA_UNROLL
        for (int c = 0; c < width; ++c) {
            const float x = float_at(tile + 4 * (i * columns + first + c));
            sum[first + c] = Isa::add_product(weights, Isa::spread(x), sum[first + c]);
        }
    }
}

// Adds the products of one block to all sums, with as many columns at a time as the registers have room for.
template <class Isa, int type, int columns>
inline void add_block(const uint8_t * panel, const uint8_t * tile, typename Isa::Floats (&sum)[columns]) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    constexpr int most = Isa::columns_at_once(layout);
    constexpr int half = columns <= most ? columns : (columns + 1) / 2;
    static_assert(columns <= 2 * most);
    if constexpr (layout.is_float()) {
        add_floats<Isa, type, columns, 0, half>(panel, tile, sum);
    } else {
        add_columns<Isa, type, columns, 0, half>(panel, tile, sum);
    }
    if constexpr (columns > half) {
        asm("" : "+r"(panel));  // else the compiler keeps the panel's data on the stack for the second half
        if constexpr (layout.is_float()) {
            add_floats<Isa, type, columns, half, columns - half>(panel, tile, sum);
        } else {
            add_columns<Isa, type, columns, half, columns - half>(panel, tile, sum);
        }
    }
}

// Flattened, because sums must stay in registers: without this attribute, GCC left Q5_0's steps for five columns and
// more as calls.
template <class Isa, int type, int columns>
[[gnu::flatten]] void multiply_panel(const uint8_t * panel, int64_t num_blocks, const uint8_t * tile, float * out,
                                     int64_t stride) {
    constexpr Layout layout = layout_of(static_cast<QuantizedType>(type));
    constexpr TileShape shape = tile_shape(layout, Isa::kWideSigned && layout.is_signed);
    typename Isa::Floats sum[columns];
    for (int c = 0; c < columns; ++c) {
        sum[c] = Isa::spread(0.0F);
    }
    for (int64_t b = 0; b < num_blocks; ++b) {
        add_block<Isa, type, columns>(panel, tile, sum);
        panel += layout.panel_bytes();
        tile += shape.column_bytes() * columns;
    }
    for (int c = 0; c < columns; ++c) {
        Isa::store(out + c * stride, sum[c]);
    }
}

}  // namespace

}  // namespace specllama::kernels
