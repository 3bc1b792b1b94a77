#include "kernels/matrix_product.hpp"

#include <algorithm>
#include <vector>

#include "kernels/pack.hpp"
#include "kernels/panel_reader.hpp"

namespace specllama::kernels {

namespace {

std::vector<uint8_t> quantized_tile(const InstructionSet & set, QuantizedType type, const float * x, int width,
                                    int64_t values) {
    const Layout layout = layout_of(type);
    const int64_t num_blocks = values / layout.values;
    const int block_bytes = width * tile_shape(layout, set.wide(type)).column_bytes();
    std::vector<uint8_t> tile(static_cast<std::size_t>(num_blocks * block_bytes));
    QuantizedBlock block = {};
    for (int column = 0; column < width; ++column) {
        for (int64_t b = 0; b < num_blocks; ++b) {
            set.quantize_block(type, x + column * values + b * layout.values, block);
            set.place(type, block, width, column, tile.data() + b * block_bytes);
        }
    }
    return tile;
}

}  // namespace

void multiply_packed(const InstructionSet & set, QuantizedType type, const uint8_t * panels, int64_t num_rows,
                     const float * x, int64_t columns, int64_t values, float * out) {
    const int64_t last = num_panels(num_rows);
    const int64_t num_blocks = values / layout_of(type).values;
    const int64_t panel_bytes = num_blocks * layout_of(type).panel_bytes();
    float sums[kMostColumns * kPanelRows];
    const Tiles tiles(columns, set.tile);
    const PanelReader reader(set, type, num_blocks, tiles.count);
    for (int64_t t = 0; t < tiles.count; ++t) {
        const int width = tiles.width(t);
        const std::vector<uint8_t> tile = quantized_tile(set, type, x + tiles.begin(t) * values, width, values);
        for (int64_t panel = 0; panel < last; ++panel) {
            reader.multiply(reader.read(panels + panel * panel_bytes), tile.data(), width, sums, kPanelRows);
            for (int c = 0; c < width; ++c) {
                const int64_t first = kPanelRows * panel;
                std::copy_n(sums + c * kPanelRows, std::min<int64_t>(kPanelRows, num_rows - first),
                            out + (tiles.begin(t) + c) * num_rows + first);
            }
        }
    }
}

}  // namespace specllama::kernels
