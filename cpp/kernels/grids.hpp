// The tables of the types whose values stand in grids (IQ2 and IQ3): four or eight magnitudes for each index.
#pragma once

#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// A table of magnitudes: an entry is four bytes, or eight bytes in two numbers.
template <int entries, int numbers>
struct Grid {
    uint32_t at[entries * numbers];
};

extern const Grid<256, 2> kIq2XxsGrid;
extern const Grid<512, 2> kIq2XsGrid;
extern const Grid<1024, 2> kIq2SGrid;
extern const Grid<256, 1> kIq3XxsGrid;
extern const Grid<512, 1> kIq3SGrid;

// The table of a type with a grid.
constexpr const uint32_t * grid_of(QuantizedType type) {
    switch (type) {
        case QuantizedType::iq2_xxs:
            return kIq2XxsGrid.at;
        case QuantizedType::iq2_xs:
            return kIq2XsGrid.at;
        case QuantizedType::iq2_s:
            return kIq2SGrid.at;
        case QuantizedType::iq3_xxs:
            return kIq3XxsGrid.at;
        default:
            return kIq3SGrid.at;
    }
}

// What the number d of a block is multiplied by, beside the scale of a span.
constexpr float grid_factor(const Layout & layout) {
    return layout.entry == 8 ? 0.125F : layout.whole_signs ? 1.0F : 0.25F;
}

}  // namespace specllama::kernels
