#include "ggml_plugin/flash_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ggml/tensors.hpp"
#include "ggml_plugin/cache_type.hpp"
#include "ggml_plugin/product_work.hpp"
#include "kernels/attention.hpp"

namespace specllama {

namespace {

constexpr int64_t kMostWork = int64_t{1} << 24;  // the most bytes of partials for which the cache is split
constexpr int64_t kMostTogether = 8;             // the most units that go through the cache together

float parameter(const ggml::Tensor * op, int index) {
    float value = 0.0F;
    std::memcpy(&value, &op->op_params[index], sizeof value);
    return value;
}

// The slope of a head, which its mask is multiplied with (ALiBi: Press et al. 2022, section 3; as in ggml where the
// number of heads is no power of two). It is 1 without ALiBi.
float slope_of(float most_bias, int64_t head, int64_t num_heads) {
    if (most_bias <= 0.0F) {
        return 1.0F;
    }
    int64_t power = 1;
    while (2 * power <= num_heads) {
        power *= 2;
    }
    const auto step = static_cast<float>(head < power ? head + 1 : 2 * (head - power) + 1);
    const float base = std::exp2(-(head < power ? most_bias : most_bias / 2) / static_cast<float>(power));
    return std::pow(base, step);
}

bool whole_lanes(int64_t length) { return length > 0 && length % kernels::kFloatLanes == 0; }

}  // namespace

bool FlashAttention::fits(const ggml::Tensor * op) {
    const ggml::Tensor * q = op->src[0];
    const ggml::Tensor * k = op->src[1];
    const ggml::Tensor * v = op->src[2];
    const ggml::Tensor * mask = op->src[3];
    const ggml::Tensor * sinks = op->src[4];
    const bool has_sinks = sinks != nullptr && sinks->type == ggml::kFloat && sinks->nb[0] == sizeof(float);
    // The meaning of a further source behind the sinks is not known, so such an operation is refused.
    const bool is_known = (sinks == nullptr || has_sinks) && op->src[5] == nullptr;
    return is_known && q != nullptr && mask != nullptr && cache_type_of(k) && cache_type_of(v) && k->type == v->type &&
           is_rows(q, ggml::kFloat) && is_rows(op, ggml::kFloat) && is_rows(mask, ggml::kHalf) &&
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
      type_(cache_type_of(key_).value()),
      heads_(query_->ne[2] / key_->ne[2]),
      num_queries_(query_->ne[1] * heads_),
      blocks_((num_queries_ + kernels::kMostQueries - 1) / kernels::kMostQueries),
      num_units_(blocks_ * key_->ne[2] * key_->ne[3]),
      num_chunks_((key_->ne[1] + kernels::kChunkCells - 1) / kernels::kChunkCells),
      scale_(parameter(op, 0)),
      most_bias_(parameter(op, 1)),
      cap_(parameter(op, 2)) {}

int64_t FlashAttention::unit_bytes() const { return kernels::kMostQueries * kernels::Partial::bytes(value_->ne[0]); }

// If there are enough units to keep all threads busy, the cache is not split, and is read once for each unit.
bool FlashAttention::splits(int num_threads) const {
    return num_chunks_ > 1 && num_units_ <= int64_t{4} * num_threads &&
           num_units_ * num_chunks_ * unit_bytes() <= kMostWork;
}

int64_t FlashAttention::thread_bytes() const {
    const std::size_t packed = kernels::packed_bytes(key_->ne[0], value_->ne[0], type_);
    return (kMostTogether + 1) * unit_bytes() + static_cast<int64_t>(whole_lines(packed));
}

std::size_t FlashAttention::work_bytes(int num_threads) const {
    const int64_t whole = splits(num_threads) ? num_units_ * num_chunks_ * unit_bytes() : 0;
    return kLine + static_cast<std::size_t>(std::max<int64_t>(whole, num_threads * thread_bytes()));
}

FlashAttention::Unit FlashAttention::unit_of(int64_t number) const {
    const int64_t place = number % blocks_ * kernels::kMostQueries;
    return {number / blocks_ % key_->ne[2], number / blocks_ / key_->ne[2], place,
            std::min<int64_t>(kernels::kMostQueries, num_queries_ - place)};
}

kernels::Queries FlashAttention::queries_of(const Unit & unit) const {
    kernels::Queries queries = {};
    queries.keys = {at(key_, 0, unit.head, unit.stream), static_cast<int64_t>(key_->nb[1])};
    queries.values = {at(value_, 0, unit.head, unit.stream), static_cast<int64_t>(value_->nb[1])};
    queries.key_length = key_->ne[0];
    queries.value_length = value_->ne[0];
    queries.scale = scale_;
    queries.cap = cap_;
    queries.count = static_cast<int>(unit.count);
    for (int i = 0; i < queries.count; ++i) {
        const int64_t token = (unit.place + i) / heads_;
        const int64_t query_head = unit.head * heads_ + (unit.place + i) % heads_;
        queries.vectors[i] = reinterpret_cast<const float *>(at(query_, token, query_head, unit.stream));
        queries.masks[i] = at(mask_, token, 0, unit.stream);
        queries.slopes[i] = slope_of(most_bias_, query_head, query_->ne[2]);
    }
    return queries;
}

float FlashAttention::sink_of(int64_t query_head) const {
    const ggml::Tensor * sinks = op_->src[4];
    return sinks == nullptr ? -INFINITY : static_cast<const float *>(sinks->data)[query_head];
}

void FlashAttention::finish(const Unit & unit, const uint8_t * partials) const {
    for (int64_t i = 0; i < unit.count; ++i) {
        const int64_t token = (unit.place + i) / heads_;
        const int64_t query_head = unit.head * heads_ + (unit.place + i) % heads_;
        // In the result the dimension of the heads comes before that of the tokens.
        uint8_t * out = at(op_, query_head, token, unit.stream);
        kernels::divide(
            *reinterpret_cast<const kernels::Partial *>(partials + i * kernels::Partial::bytes(value_->ne[0])),
            value_->ne[0], sink_of(query_head), reinterpret_cast<float *>(out));
    }
}

std::vector<TextInBatch> FlashAttention::texts_of() const {
    return key_->ne[3] == 1 ? texts_in_batch(mask_, query_->ne[1]) : std::vector<TextInBatch>();
}

uint8_t * FlashAttention::room_of(const ggml::ComputeParams & params) const {
    return first_line(params.wdata) + params.ith * thread_bytes();
}

void FlashAttention::attend_to_texts(const ggml::ComputeParams & params, const std::vector<TextInBatch> & texts) const {
    uint8_t * out = room_of(params);
    int64_t number = 0;
    for (const TextInBatch & text : texts) {
        const kernels::SeenCells seen = {text.cells.data(), static_cast<int64_t>(text.cells.size()), key_->ne[1]};
        const int64_t last = (text.first + text.count) * heads_;
        for (int64_t head = 0; head < key_->ne[2]; ++head) {
            for (int64_t place = text.first * heads_; place < last; place += kernels::kMostQueries, ++number) {
                if (number % params.nth != params.ith) {
                    continue;
                }
                const Unit unit = {head, 0, place, std::min<int64_t>(kernels::kMostQueries, last - place)};
                kernels::attend_to_some(kernels_, type_, queries_of(unit), seen, out, out + unit_bytes(),
                                        out + 2 * unit_bytes());
                finish(unit, out);
            }
        }
    }
}

uint8_t * FlashAttention::part(const ggml::ComputeParams & params, int64_t unit, int64_t chunk) const {
    return first_line(params.wdata) + (unit * num_chunks_ + chunk) * unit_bytes();
}

void FlashAttention::attend_in_parts(const ggml::ComputeParams & params) const {
    // An item is one chunk for one unit. The items of a chunk follow each other, for all heads. The rows of the heads
    // lie side by side, so that the chunk is fetched once, as one piece. A thread gets neighbouring items. If two
    // threads took items in turn, the shares would not be equal, because the mask may hide the last chunk.
    const int64_t of_stream = num_units_ / key_->ne[3];
    const int64_t items = num_units_ * num_chunks_;
    for (int64_t item = items * params.ith / params.nth; item < items * (params.ith + 1) / params.nth; ++item) {
        const int64_t chunk = item / of_stream % num_chunks_;
        const int64_t unit = item / of_stream / num_chunks_ * of_stream + item % of_stream;
        const bool fetches = unit % blocks_ == 0;  // the first unit of each head fetches
        kernels::attend_to_chunk(kernels_, type_, queries_of(unit_of(unit)), key_->ne[1], chunk, fetches,
                                 part(params, unit, chunk));
    }
}

void FlashAttention::merge_parts(const ggml::ComputeParams & params) const {
    for (int64_t unit = params.ith; unit < num_units_; unit += params.nth) {
        const kernels::Queries queries = queries_of(unit_of(unit));
        for (int64_t chunk = 1; chunk < num_chunks_; ++chunk) {
            kernels::merge_all(kernels_, queries, part(params, unit, 0), part(params, unit, chunk));
        }
        finish(unit_of(unit), part(params, unit, 0));
    }
}

void FlashAttention::attend_to_units(const ggml::ComputeParams & params) const {
    // Some units go through the cache together, so that a chunk is fetched once for all of them.
    const int64_t size = std::clamp(num_units_ / (2 * int64_t{params.nth}), int64_t{1}, int64_t{kMostTogether});
    uint8_t * all = room_of(params);
    std::array<kernels::Queries, kMostTogether> queries = {};
    for (int64_t first = params.ith * size; first < num_units_; first += params.nth * size) {
        const int64_t count = std::min(size, num_units_ - first);
        for (int64_t i = 0; i < count; ++i) {
            queries[i] = queries_of(unit_of(first + i));
        }
        kernels::attend_to_all(kernels_, type_, queries.data(), count, key_->ne[1], all, unit_bytes());
        for (int64_t i = 0; i < count; ++i) {
            finish(unit_of(first + i), all + i * unit_bytes());
        }
    }
}

}  // namespace specllama
