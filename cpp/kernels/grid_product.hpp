// 32 values of types with grids, for instruction sets that hold one step of all rows in registers. The rules of
// panel_product.hpp hold here, too.
#pragma once

#include "kernels/grids.hpp"
#include "kernels/panel_product.hpp"

namespace specllama::kernels {

namespace {

template <class Isa, int type>
class Part<Isa, type, true> {
public:
    using Lanes = typename Isa::Lanes;

    // Reads the part `sub` of a block: what its steps have in common.
    Part(const uint8_t * panel, int sub) : panel_(panel), lines_(panel + kLayout.part_bytes() * sub), sub_(sub) {
        coded_ = Isa::load(lines_ + 64 * kLines);
        signs_ = kLayout.whole_signs ? coded_ : whole_signs(coded_);
        if constexpr (kLayout.whole_signs) {
            high_ = Isa::widen_bytes(panel + kLayout.high_at() + kPanelRows * sub);
        }
    }

    // The steps 2 * pair and 2 * pair + 1: signed bytes.
    void two_steps(int pair, Lanes & first, Lanes & second) const {
        constexpr const uint32_t * grid = grid_of(static_cast<QuantizedType>(type));
        if constexpr (kLayout.entry == 8) {
            Isa::gather_eights(grid, index(pair), first, second);
        } else {
            first = Isa::gather_fours(grid, index(2 * pair));
            second = Isa::gather_fours(grid, index(2 * pair + 1));
        }
        first = Isa::negate(first, signs_, pair, 0);
        second = Isa::negate(second, signs_, pair, 1);
    }

    // The scales of the half `half`, or of all values if they share one.
    typename Isa::Floats scale(int half) const { return Isa::to_floats(whole_scale(half)); }

    // The same as whole numbers: 2 * s + 1.
    Lanes whole_scale(int half) const {
        if constexpr (kLayout.scales == Scales::in_signs) {
            return odd(Isa::shift_down(coded_, 28));
        } else {
            const int scale = kLayout.span == 16 ? 2 * sub_ + half : sub_;
            const Lanes two = Isa::widen_bytes(panel_ + kLayout.scales_at() + kPanelRows * (scale / 2));
            return odd(Isa::common(Isa::shift_down(two, 4 * (scale % 2)), 15));
        }
    }

private:
    static constexpr Layout kLayout = layout_of(static_cast<QuantizedType>(type));
    static constexpr int kLines = 32 / kLayout.entry / 4;  // registers of indices

    static Lanes odd(Lanes nibbles) { return Isa::either(Isa::shift_up(nibbles, 1), Isa::spread(int32_t{1})); }

    // The indices of the entry `entry` of all rows.
    Lanes index(int entry) const {
        const Lanes low = Isa::common(Isa::shift_down(Isa::load(lines_ + 64 * (entry / 4)), 8 * (entry % 4)), 255);
        if constexpr (kLayout.index_bits == 8) {
            return low;
        } else if constexpr (kLayout.whole_signs) {
            constexpr int bits = kLayout.index_bits - 8;
            return Isa::either(low, Isa::common(Isa::shift_up(high_, 8 - bits * entry), ((1 << bits) - 1) << 8));
        } else {
            return Isa::either(low, Isa::common(Isa::shift_up(coded_, 8 - 28 - entry), 256));
        }
    }

    // Makes four bytes of four times seven signs: the eighth sign of each makes the number of ones even.
    static Lanes whole_signs(Lanes coded) {
        const Lanes seven =
            Isa::either(Isa::either(Isa::common(coded, 0x7F), Isa::common(Isa::shift_up(coded, 1), 0x7F00)),
                        Isa::either(Isa::common(Isa::shift_up(coded, 2), 0x7F0000),
                                    Isa::common(Isa::shift_up(coded, 3), 0x7F000000)));
        Lanes folded = Isa::differing(seven, Isa::shift_down(seven, 4));  // each byte's lower half is right
        folded = Isa::differing(folded, Isa::shift_down(folded, 2));
        folded = Isa::differing(folded, Isa::shift_down(folded, 1));
        return Isa::either(seven, Isa::shift_up(Isa::common(folded, 0x01010101), 7));
    }

    const uint8_t * panel_;
    const uint8_t * lines_;
    int sub_;
    Lanes coded_;
    Lanes signs_;
    Lanes high_;
};

// See InstructionSet::expand.
template <class Isa, int type>
void expand_panel(const uint8_t * panel, int64_t num_blocks, uint8_t * out) {
    constexpr Layout from = layout_of(static_cast<QuantizedType>(type));
    constexpr Layout to = layout_of(expanded(static_cast<QuantizedType>(type)));
    using Lanes = typename Isa::Lanes;
    for (int64_t b = 0; b < num_blocks; ++b, panel += from.panel_bytes(), out += to.panel_bytes()) {
        for (int sub = 0; sub < from.values / 32; ++sub) {
            const Part<Isa, type> part(panel, sub);
            for (int pair = 0; pair < 4; ++pair) {
                Lanes first = {};
                Lanes second = {};
                part.two_steps(pair, first, second);
                Isa::store_lanes(out + 64 * (8 * sub + 2 * pair), first);
                Isa::store_lanes(out + 64 * (8 * sub + 2 * pair + 1), second);
            }
            for (int half = 0; half < 32 / from.span; ++half) {
                const int scale = 32 / from.span * sub + half;
                uint8_t wide[64];
                Isa::store_lanes(wide, part.whole_scale(half));
                uint8_t * at = out + to.scales_at() + 2 * kPanelRows * (scale / 2) + scale % 2;
                for (int row = 0; row < kPanelRows; ++row) {
                    at[2 * row] = wide[4 * row];
                }
            }
        }
        Isa::store(reinterpret_cast<float *>(out + to.d_at()), scales_of_blocks<Isa, type>(panel));
    }
}

template <class Isa, int type>
constexpr Expand expansion() {
    if constexpr (layout_of(static_cast<QuantizedType>(type)).is_grid()) {
        return expand_panel<Isa, type>;
    } else {
        return nullptr;
    }
}

}  // namespace

}  // namespace specllama::kernels
