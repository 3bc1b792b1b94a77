#include "ggml_plugin/product.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ggml/tensors.hpp"
#include "ggml_plugin/product_work.hpp"

namespace specllama {

namespace {

struct Shared {
    std::atomic<int64_t> next{0};  // the first of the wanted panels that no thread has taken
    const WantedPanels * wanted = nullptr;
};
static_assert(sizeof(Shared) <= kLine);

Shared & shared(void * work) { return *reinterpret_cast<Shared *>(first_line(work)); }

int64_t num_columns(const ggml::Tensor * x) { return x->ne[1] * x->ne[2] * x->ne[3]; }

// Whether the distance from each column to the next is the same.
bool is_even(const ggml::Tensor * x) {
    return x->nb[2] == static_cast<std::size_t>(x->ne[1]) * x->nb[1] &&
           x->nb[3] == static_cast<std::size_t>(x->ne[2]) * x->nb[2];
}

}  // namespace

bool Product::fits(const ggml::Tensor * op) {
    const int64_t matrices = op->src[0]->ne[2];
    return matrices == 1 || (op->src[1]->ne[2] == matrices && op->src[1]->ne[3] == 1);
}

Product::Product(const kernels::InstructionSet & set, kernels::QuantizedType type, const ggml::Tensor * op)
    : set_(set),
      type_(type),
      layout_(kernels::layout_of(type)),
      shape_(kernels::tile_shape(layout_, set.wide(type))),
      num_matrices_(op->src[0]->ne[2]),
      tiles_(num_columns(op->src[1]) / num_matrices_, set.tile),
      op_(op),
      num_blocks_(op->src[0]->ne[0] / layout_.values),
      num_rows_(op->src[0]->ne[1]),
      num_panels_(kernels::num_panels(num_rows_)),
      reader_(set, type, num_blocks_, tiles_.count),
      is_even_(is_even(op)) {}

std::size_t Product::work_bytes() const {
    const int64_t columns = num_matrices_ * tiles_.columns;
    const auto tiles = static_cast<std::size_t>(columns * num_blocks_ * shape_.column_bytes());
    return 2 * kLine + tiles;
}

const float * Product::column(const ggml::Tensor * tensor, int64_t index) const {
    const int64_t first = index % tensor->ne[1];
    const int64_t second = index / tensor->ne[1] % tensor->ne[2];
    const int64_t third = index / tensor->ne[1] / tensor->ne[2];
    return reinterpret_cast<const float *>(at(tensor, first, second, third));
}

uint8_t * Product::tile(uint8_t * work, int64_t matrix, int64_t index) const {
    const int64_t before = matrix * tiles_.columns + tiles_.begin(index);
    return work + kLine + before * num_blocks_ * shape_.column_bytes();
}

void Product::quantize(const ggml::ComputeParams & params, const WantedPanels * wanted) const {
    uint8_t * work = first_line(params.wdata);
    if (params.ith == 0) {
        new (work) Shared{{0}, wanted};
    }
    kernels::QuantizedBlock block = {};
    int64_t b = params.ith;
    for (int64_t index = 0; index < num_matrices_ * tiles_.columns; ++index, b -= num_blocks_) {
        const float * x = column(op_->src[1], index);
        const int64_t matrix = index / tiles_.columns;
        const int64_t of_matrix = index % tiles_.columns;
        const int64_t t = tiles_.of(of_matrix);
        const int width = tiles_.width(t);
        uint8_t * out = tile(work, matrix, t);
        for (; b < num_blocks_; b += params.nth) {
            set_.quantize_block(type_, x + b * layout_.values, block);
            set_.place(type_, block, width, static_cast<int>(of_matrix - tiles_.begin(t)),
                       out + b * width * shape_.column_bytes());
        }
    }
}

void Product::multiply(const ggml::ComputeParams & params) const {
    const WantedPanels * wanted = shared(params.wdata).wanted;
    std::atomic<int64_t> & next = shared(params.wdata).next;
    const int64_t count = wanted != nullptr ? wanted->count : num_matrices_ * num_panels_;
    const int64_t size = panels_at_a_time(count, params.nth);
    for (int64_t first = next.fetch_add(size, std::memory_order_relaxed); first < count;
         first = next.fetch_add(size, std::memory_order_relaxed)) {
        multiply_panels(first_line(params.wdata), wanted != nullptr ? wanted->panels : nullptr, first,
                        std::min(first + size, count));
    }
}

// Threads read expanded panels for all tiles at once; others may stay in the caches from tile to tile.
void Product::multiply_panels(uint8_t * work, const int32_t * panels, int64_t first, int64_t last) const {
    for (int64_t begin = first, end = last; begin < last; begin = end) {
        const int64_t matrix = panels != nullptr ? 0 : begin / num_panels_;
        end = panels != nullptr ? last : std::min(last, (matrix + 1) * num_panels_);
        const auto panel = [&](int64_t i) { return panels != nullptr ? panels[i] : i % num_panels_; };
        for (int64_t i = begin; reader_.expands() && i < end; ++i) {
            const uint8_t * expanded = reader_.read(weights(matrix, panel(i)));
            for (int64_t t = 0; t < tiles_.count; ++t) {
                multiply_one(expanded, work, matrix, t, panel(i));
            }
        }
        for (int64_t t = 0; !reader_.expands() && t < tiles_.count; ++t) {
            for (int64_t i = begin; i < end; ++i) {
                multiply_one(weights(matrix, panel(i)), work, matrix, t, panel(i));
            }
        }
    }
}

const uint8_t * Product::weights(int64_t matrix, int64_t panel) const {
    return static_cast<const uint8_t *>(op_->src[0]->data) +
           (matrix * num_panels_ + panel) * num_blocks_ * layout_.panel_bytes();
}

void Product::multiply_one(const uint8_t * weights, uint8_t * work, int64_t matrix, int64_t index,
                           int64_t panel) const {
    const int width = tiles_.width(index);
    const int64_t first_column = matrix * tiles_.columns + tiles_.begin(index);
    const int64_t first_row = kernels::kPanelRows * panel;
    const int64_t rows = std::min<int64_t>(kernels::kPanelRows, num_rows_ - first_row);
    if (is_even_ && rows == kernels::kPanelRows) {
        const auto stride = static_cast<int64_t>(op_->nb[1] / sizeof(float));
        float * out = static_cast<float *>(op_->data) + first_column * stride + first_row;
        reader_.multiply(weights, tile(work, matrix, index), width, out, stride);
        return;
    }
    // The columns of the result may be apart, and the last panel may have fewer rows than others.
    float sums[kernels::kMostColumns * kernels::kPanelRows];
    reader_.multiply(weights, tile(work, matrix, index), width, sums, kernels::kPanelRows);
    const float * sum = sums;
    for (int c = 0; c < width; ++c, sum += kernels::kPanelRows) {
        auto * out = const_cast<float *>(column(op_, first_column + c)) + first_row;
        std::memcpy(out, sum, static_cast<std::size_t>(rows) * sizeof(float));
    }
}

}  // namespace specllama
