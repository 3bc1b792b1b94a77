#include "ggml_plugin/flash_attention.hpp"

#include <algorithm>
#include <cstring>

#include "ggml_plugin/tensors.hpp"
#include "kernels/attention.hpp"

namespace specllama {

namespace {

constexpr int64_t kMostWork = int64_t{1} << 24;  // bytes of partials
constexpr std::size_t kLine = 64;

uint8_t * aligned(void * work) {
    return reinterpret_cast<uint8_t *>((reinterpret_cast<std::uintptr_t>(work) + kLine - 1) / kLine * kLine);
}

float parameter(const ggml::Tensor * op, int index) {
    float value = 0.0F;
    std::memcpy(&value, &op->op_params[index], sizeof value);
    return value;
}

bool whole_lanes(int64_t length) { return length > 0 && length % kernels::kFloatLanes == 0; }

}  // namespace

bool FlashAttention::fits(const ggml::Tensor * op) {
    const ggml::Tensor * q = op->src[0];
    const ggml::Tensor * k = op->src[1];
    const ggml::Tensor * v = op->src[2];
    const ggml::Tensor * mask = op->src[3];
    const bool plain = parameter(op, 1) == 0.0F && parameter(op, 2) == 0.0F && op->src[4] == nullptr;
    return plain && q != nullptr && mask != nullptr && is_rows_of_floats(k) && is_rows_of_floats(v) &&
           k->type == v->type && is_rows(q, ggml::kFloat) && is_rows(op, ggml::kFloat) && is_rows(mask, ggml::kHalf) &&
           whole_lanes(k->ne[0]) && whole_lanes(v->ne[0]) && whole_lanes(k->ne[1]) && q->ne[0] == k->ne[0] &&
           v->ne[1] == k->ne[1] && v->ne[2] == k->ne[2] && q->ne[2] % k->ne[2] == 0 && mask->ne[0] == k->ne[1] &&
           mask->ne[1] >= q->ne[1] && mask->ne[2] == 1 && q->ne[3] == k->ne[3] && q->ne[3] == v->ne[3] &&
           q->ne[3] == mask->ne[3];
}

FlashAttention::FlashAttention(const kernels::FloatKernels & kernels, const ggml::Tensor * op)
    : kernels_(kernels),
      op_(op),
      query_(op->src[0]),
      key_(op->src[1]),
      value_(op->src[2]),
      mask_(op->src[3]),
      heads_(query_->ne[2] / key_->ne[2]),
      num_queries_(query_->ne[1] * heads_),
      blocks_((num_queries_ + kernels::kMostQueries - 1) / kernels::kMostQueries),
      num_units_(blocks_ * key_->ne[2] * key_->ne[3]),
      num_chunks_((key_->ne[1] + kernels::kChunkCells - 1) / kernels::kChunkCells),
      scale_(parameter(op, 0)) {}

int64_t FlashAttention::unit_bytes() const { return kernels::kMostQueries * kernels::Partial::bytes(value_->ne[0]); }

// Enough units keep all threads busy, and the cache is then read once for each.
bool FlashAttention::splits(int num_threads) const {
    return num_chunks_ > 1 && num_units_ < int64_t{4} * num_threads &&
           num_units_ * num_chunks_ * unit_bytes() <= kMostWork;
}

std::size_t FlashAttention::work_bytes(int num_threads) const {
    const int64_t whole = splits(num_threads) ? num_units_ * num_chunks_ : 0;
    return kLine + static_cast<std::size_t>(std::max<int64_t>(whole, int64_t{2} * num_threads) * unit_bytes());
}

int64_t FlashAttention::place(int64_t unit, int i) const { return unit % blocks_ * kernels::kMostQueries + i; }

kernels::Queries FlashAttention::queries_of(int64_t unit) const {
    const int64_t head = unit / blocks_ % key_->ne[2];
    const int64_t stream = unit / blocks_ / key_->ne[2];
    kernels::Queries queries = {};
    queries.keys = {at(key_, 0, head, stream), static_cast<int64_t>(key_->nb[1])};
    queries.values = {at(value_, 0, head, stream), static_cast<int64_t>(value_->nb[1])};
    queries.key_length = key_->ne[0];
    queries.value_length = value_->ne[0];
    queries.scale = scale_;
    queries.count = static_cast<int>(std::min<int64_t>(kernels::kMostQueries, num_queries_ - place(unit, 0)));
    for (int i = 0; i < queries.count; ++i) {
        const int64_t token = place(unit, i) / heads_;
        const int64_t query_head = head * heads_ + place(unit, i) % heads_;
        queries.vectors[i] = reinterpret_cast<const float *>(at(query_, token, query_head, stream));
        queries.masks[i] = at(mask_, token, 0, stream);
    }
    return queries;
}

void FlashAttention::finish(int64_t unit, const kernels::Queries & queries, const uint8_t * partials) const {
    const int64_t head = unit / blocks_ % key_->ne[2];
    const int64_t stream = unit / blocks_ / key_->ne[2];
    for (int i = 0; i < queries.count; ++i) {
        // The result has its heads before its tokens.
        uint8_t * out = at(op_, head * heads_ + place(unit, i) % heads_, place(unit, i) / heads_, stream);
        kernels::divide(
            *reinterpret_cast<const kernels::Partial *>(partials + i * kernels::Partial::bytes(queries.value_length)),
            queries.value_length, reinterpret_cast<float *>(out));
    }
}

uint8_t * FlashAttention::part(const ggml::ComputeParams & params, int64_t unit, int64_t chunk) const {
    return aligned(params.wdata) + (unit * num_chunks_ + chunk) * unit_bytes();
}

void FlashAttention::attend_in_parts(const ggml::ComputeParams & params) const {
    for (int64_t item = params.ith; item < num_units_ * num_chunks_; item += params.nth) {
        const int64_t unit = item / num_chunks_;
        kernels::attend_to_chunk(kernels_, key_->type == ggml::kHalf, queries_of(unit), key_->ne[1], item % num_chunks_,
                                 part(params, unit, item % num_chunks_));
    }
}

void FlashAttention::merge_parts(const ggml::ComputeParams & params) const {
    for (int64_t unit = params.ith; unit < num_units_; unit += params.nth) {
        const kernels::Queries queries = queries_of(unit);
        for (int64_t chunk = 1; chunk < num_chunks_; ++chunk) {
            kernels::merge_all(kernels_, queries, part(params, unit, 0), part(params, unit, chunk));
        }
        finish(unit, queries, part(params, unit, 0));
    }
}

void FlashAttention::attend_to_units(const ggml::ComputeParams & params) const {
    uint8_t * all = aligned(params.wdata) + int64_t{2} * params.ith * unit_bytes();
    for (int64_t unit = params.ith; unit < num_units_; unit += params.nth) {
        const kernels::Queries queries = queries_of(unit);
        kernels::attend_to_all(kernels_, key_->type == ggml::kHalf, queries, key_->ne[1], all, all + unit_bytes());
        finish(unit, queries, all);
    }
}

}  // namespace specllama
