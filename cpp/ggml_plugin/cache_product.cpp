#include "ggml_plugin/cache_product.hpp"

#include <algorithm>
#include <cstring>

#include "ggml/tensors.hpp"
#include "ggml_plugin/cache_type.hpp"

namespace specllama {

CacheProduct::CacheProduct(const kernels::FloatKernels & kernels, const ggml::Tensor * op)
    : kernels_(kernels), op_(op), cache_(op->src[0]), columns_(op->src[1]) {}

namespace {

bool is_router(const ggml::Tensor * weights) { return std::strstr(weights->name, ".ffn_gate_inp") != nullptr; }

}  // namespace

bool CacheProduct::fits(const ggml::Tensor * op) {
    const ggml::Tensor * cache = op->src[0];
    const ggml::Tensor * columns = op->src[1];
    return cache_type_of(cache) && (cache->view_src != nullptr || is_router(cache)) && is_rows(columns, ggml::kFloat) &&
           is_rows(op, ggml::kFloat) && cache->ne[0] == columns->ne[0] && cache->ne[0] > 0 &&
           cache->ne[0] % kernels::kFloatLanes == 0 && columns->ne[2] % cache->ne[2] == 0 &&
           columns->ne[3] == cache->ne[3];
}

void CacheProduct::compute(const ggml::ComputeParams & params) const {
    constexpr int64_t kBytes = 16384;  // bytes of KV cache that are multiplied with all columns at once: half of L1
    const int64_t row_bytes = kernels::cache_bytes(cache_type_of(cache_).value(), cache_->ne[0]);
    const int64_t rows = std::clamp<int64_t>(kBytes / row_bytes / 4 * 4, 4, 64);
    const int64_t blocks = (cache_->ne[1] + rows - 1) / rows;
    for (int64_t unit = params.ith; unit < blocks * cache_->ne[2] * cache_->ne[3]; unit += params.nth) {
        const int64_t first = unit % blocks * rows;
        multiply(unit / blocks % cache_->ne[2], unit / blocks / cache_->ne[2], first,
                 std::min(first + rows, cache_->ne[1]));
    }
}

void CacheProduct::multiply(int64_t head, int64_t stream, int64_t first_row, int64_t last_row) const {
    const kernels::CacheRows rows = {at(cache_, first_row, head, stream), static_cast<int64_t>(cache_->nb[1])};
    const int64_t heads = columns_->ne[2] / cache_->ne[2];
    const int64_t count = heads * columns_->ne[1];
    const kernels::CacheType type = cache_type_of(cache_).value();
    const auto multiply = kernels_.multiply_rows_of(type);
    for (int64_t first = 0; first < count; first += kernels::kMostQueries) {
        const float * columns[kernels::kMostQueries];
        float * out[kernels::kMostQueries];
        const int64_t width = std::min<int64_t>(kernels::kMostQueries, count - first);
        for (int64_t i = 0; i < width; ++i) {
            const int64_t token = (first + i) / heads;
            const int64_t query_head = head * heads + (first + i) % heads;
            columns[i] = reinterpret_cast<const float *>(at(columns_, token, query_head, stream));
            out[i] = reinterpret_cast<float *>(at(op_, token, query_head, stream)) + first_row;
        }
        multiply(rows, last_row - first_row, columns, static_cast<int>(width), cache_->ne[0], out);
    }
}

}  // namespace specllama
