#include "ggml_plugin/expert_product.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "ggml/tensors.hpp"
#include "ggml_plugin/product_work.hpp"

namespace specllama {

namespace {

struct Shared {
    std::atomic<int64_t> next{0};  // the first panel that no thread has taken, counted over all chosen experts
};
static_assert(sizeof(Shared) <= kLine);

}  // namespace

ExpertProduct::ExpertProduct(const kernels::InstructionSet & set, kernels::QuantizedType type, const ggml::Tensor * op)
    : set_(set),
      type_(type),
      layout_(kernels::layout_of(type)),
      column_bytes_(kernels::tile_shape(layout_, set.wide(type)).column_bytes()),
      op_(op),
      num_blocks_(op->src[0]->ne[0] / layout_.values),
      num_rows_(op->src[0]->ne[1]),
      num_panels_(kernels::num_panels(num_rows_)),
      num_experts_(op->src[0]->ne[2]),
      num_used_(op->src[2]->ne[0]),
      num_choices_(num_used_ * op->src[2]->ne[1]) {}

bool ExpertProduct::fits(const ggml::Tensor * op) {
    const ggml::Tensor * x = op->src[1];
    const ggml::Tensor * ids = op->src[2];
    return ids != nullptr && ids->type == ggml::kInt32 && ids->nb[0] == 4 && ids->ne[2] == 1 && ids->ne[3] == 1 &&
           x->ne[1] > 0 && x->ne[3] == 1 && x->ne[2] == ids->ne[1];
}

std::size_t ExpertProduct::columns_bytes() const {
    return whole_lines(sizeof(int32_t) * static_cast<std::size_t>(2 * num_experts_ + 2 + num_choices_) +
                       sizeof(Place) * static_cast<std::size_t>(num_choices_));
}

std::size_t ExpertProduct::work_bytes(int num_threads) const {
    return 2 * kLine + static_cast<std::size_t>(num_threads) * columns_bytes() +
           static_cast<std::size_t>(num_choices_ * num_blocks_ * column_bytes_);
}

ExpertProduct::Columns ExpertProduct::columns_of(const ggml::ComputeParams & params) const {
    auto * first = reinterpret_cast<int32_t *>(first_line(params.wdata) + kLine +
                                               static_cast<std::size_t>(params.ith) * columns_bytes());
    int32_t * chosen_by = first + num_experts_ + 1;
    int32_t * busy = chosen_by + num_choices_;
    int32_t * num_busy = busy + num_experts_;
    return {first, chosen_by, busy, num_busy, reinterpret_cast<Place *>(num_busy + 1)};
}

uint8_t * ExpertProduct::tiles(const ggml::ComputeParams & params) const {
    return first_line(params.wdata) + kLine + static_cast<std::size_t>(params.nth) * columns_bytes();
}

// The number of the expert that a choice (a token and one of its experts) means. A number that no expert has, as from a
// damaged file, becomes the nearest valid one.
int32_t ExpertProduct::expert(int64_t choice) const {
    const uint8_t * number = at(op_->src[2], choice / num_used_, 0, 0) + 4 * (choice % num_used_);
    int32_t found = 0;
    std::memcpy(&found, number, sizeof found);
    return std::clamp(found, 0, static_cast<int32_t>(num_experts_) - 1);
}

kernels::Tiles ExpertProduct::tiles_of(const Columns & columns, int32_t expert) const {
    return {columns.first[expert + 1] - columns.first[expert], set_.tile};
}

// Sorts the choices into columns: by expert, and for one expert in the order of the tokens.
void ExpertProduct::sort(const Columns & columns) const {
    std::fill(columns.first, columns.first + num_experts_ + 1, 0);
    for (int64_t choice = 0; choice < num_choices_; ++choice) {
        ++columns.first[expert(choice) + 1];
    }
    *columns.num_busy = 0;
    for (int32_t e = 0; e < num_experts_; ++e) {
        if (columns.first[e + 1] > 0) {
            columns.busy[(*columns.num_busy)++] = e;
        }
    }
    const auto count = [&](int32_t e) { return columns.first[e + 1]; };
    std::sort(columns.busy, columns.busy + *columns.num_busy, [&](int32_t one, int32_t other) {
        // Experts that are chosen equally often are sorted by number, so the order is the same in all threads.
        return count(one) != count(other) ? count(one) > count(other) : one < other;
    });
    std::partial_sum(columns.first, columns.first + num_experts_ + 1, columns.first);
    for (int64_t choice = 0; choice < num_choices_; ++choice) {
        columns.chosen_by[columns.first[expert(choice)]++] = static_cast<int32_t>(choice);
    }
    std::copy_backward(columns.first, columns.first + num_experts_, columns.first + num_experts_ + 1);
    columns.first[0] = 0;  // the loop above moved each `first` to the beginning of the next expert
    for (int32_t i = 0; i < *columns.num_busy; ++i) {
        const int32_t begin = columns.first[columns.busy[i]];
        const kernels::Tiles tiles = tiles_of(columns, columns.busy[i]);
        for (int64_t t = 0; t < tiles.count; ++t) {
            for (int64_t c = tiles.begin(t); c < tiles.begin(t + 1); ++c) {
                columns.places[columns.chosen_by[begin + c]] = {static_cast<int32_t>(begin + tiles.begin(t)),
                                                                static_cast<int16_t>(tiles.width(t)),
                                                                static_cast<int16_t>(c - tiles.begin(t))};
            }
        }
    }
}

void ExpertProduct::quantize(const ggml::ComputeParams & params) const {
    if (params.ith == 0) {
        new (first_line(params.wdata)) Shared;
    }
    const Columns columns = columns_of(params);
    sort(columns);
    uint8_t * all = tiles(params);
    const ggml::Tensor * x = op_->src[1];
    kernels::QuantizedBlock block = {};
    int64_t b = params.ith;
    for (int64_t index = 0; index < x->ne[1] * x->ne[2]; ++index, b -= num_blocks_) {
        const int64_t token = index / x->ne[1];
        const int64_t which = index % x->ne[1];
        const auto * values = reinterpret_cast<const float *>(at(x, which, token, 0));
        for (; b < num_blocks_; b += params.nth) {
            set_.quantize_block(type_, values + b * layout_.values, block);
            // ggml repeats activations if there are fewer of them than choices.
            for (int64_t used = which; used < num_used_; used += x->ne[1]) {
                const Place & place = columns.places[token * num_used_ + used];
                set_.place(type_, block, place.width, place.column,
                           all + (place.tile * num_blocks_ + b * place.width) * column_bytes_);
            }
        }
    }
}

// The most often chosen experts come first, so that no thread is left with an expert of many columns at the end.
void ExpertProduct::multiply(const ggml::ComputeParams & params) const {
    auto & next = reinterpret_cast<Shared *>(first_line(params.wdata))->next;
    const Columns columns = columns_of(params);
    const int64_t count = *columns.num_busy * num_panels_;
    const int64_t size = panels_at_a_time(count, params.nth);
    for (int64_t first = next.fetch_add(size, std::memory_order_relaxed); first < count;
         first = next.fetch_add(size, std::memory_order_relaxed)) {
        for (int64_t panel = first, last = std::min(first + size, count); panel < last;) {
            const int64_t which = panel / num_panels_;
            const int64_t end = std::min(last, (which + 1) * num_panels_);
            multiply_panels(columns, tiles(params), columns.busy[which], panel - which * num_panels_,
                            end - which * num_panels_);
            panel = end;
        }
    }
}

void ExpertProduct::multiply_panels(const Columns & columns, uint8_t * tiles, int32_t expert, int64_t first,
                                    int64_t last) const {
    const int64_t panel_bytes = num_blocks_ * layout_.panel_bytes();
    const auto * weights = static_cast<const uint8_t *>(op_->src[0]->data) + expert * num_panels_ * panel_bytes;
    const int32_t begin = columns.first[expert];
    const kernels::Tiles of_expert = tiles_of(columns, expert);
    const kernels::PanelReader reader(set_, type_, num_blocks_, of_expert.count);
    const auto multiply_tile = [&](const uint8_t * read, int64_t panel, int64_t t) {
        const int64_t column = begin + of_expert.begin(t);
        multiply_one(reader, read, tiles + column * num_blocks_ * column_bytes_, columns.chosen_by + column,
                     of_expert.width(t), kernels::kPanelRows * panel);
    };
    for (int64_t panel = first; reader.expands() && panel < last; ++panel) {
        const uint8_t * expanded = reader.read(weights + panel * panel_bytes);
        for (int64_t t = 0; t < of_expert.count; ++t) {
            multiply_tile(expanded, panel, t);
        }
    }
    for (int64_t t = 0; !reader.expands() && t < of_expert.count; ++t) {
        for (int64_t panel = first; panel < last; ++panel) {
            multiply_tile(weights + panel * panel_bytes, panel, t);
        }
    }
}

void ExpertProduct::multiply_one(const kernels::PanelReader & reader, const uint8_t * panel, const uint8_t * tile,
                                 const int32_t * choices, int width, int64_t first_row) const {
    const int64_t rows = std::min<int64_t>(kernels::kPanelRows, num_rows_ - first_row);
    if (width == 1 && rows == kernels::kPanelRows) {
        reader.multiply(panel, tile, width, result(choices[0]) + first_row, kernels::kPanelRows);
        return;
    }
    float sums[kernels::kMostColumns * kernels::kPanelRows];
    reader.multiply(panel, tile, width, sums, kernels::kPanelRows);
    const float * sum = sums;
    for (int c = 0; c < width; ++c, sum += kernels::kPanelRows) {
        std::memcpy(result(choices[c]) + first_row, sum, static_cast<std::size_t>(rows) * sizeof(float));
    }
}

float * ExpertProduct::result(int64_t choice) const {
    return reinterpret_cast<float *>(at(op_, choice % num_used_, choice / num_used_, 0));
}

}  // namespace specllama
