// Copies long rows of floats (CPY, GET_ROWS), divided among ggml's threads. ggml gives each row to one thread. The rows
// of a recurrent state are few and have megabytes: one thread would copy them all while the others wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ggml/ggml_layout.hpp"
#include "ggml/tensors.hpp"

namespace specllama {

// The least floats of rows that are divided, if they are not those of an update of states.
constexpr int64_t kLongRow = 16384;

// Whether the operation copies numbers to rows: from rows of the same length, or from numbers that stand side by side.
inline bool is_copy_of_rows(const ggml::Tensor * op) {
    const ggml::Tensor * from = op->src[0];
    return is_rows(op, ggml::kFloat) && is_rows(from, ggml::kFloat) &&
           (std::equal(op->ne, op->ne + ggml::kMaxDims, from->ne) ||
            (is_whole(from) && count_of(from) == count_of(op)));
}

// Whether the operation gathers rows of floats by their numbers.
inline bool is_choice_of_rows(const ggml::Tensor * op) {
    const ggml::Tensor * from = op->src[0];
    const ggml::Tensor * chosen = op->src[1];
    return is_rows(op, ggml::kFloat) && is_rows(from, ggml::kFloat) && op->ne[0] == from->ne[0] && op->ne[2] == 1 &&
           op->ne[3] == 1 && is_rows(chosen, ggml::kInt32) && chosen->ne[0] == op->ne[1];
}

// A thread's share of every row.
class RowShare {
public:
    RowShare(const ggml::ComputeParams & params, int64_t num_floats)
        : first_(edge(num_floats, params.ith, params.nth)), last_(edge(num_floats, params.ith + 1, params.nth)) {}

    void copy(uint8_t * to, const uint8_t * from) const { std::memcpy(to + first_, from + first_, last_ - first_); }

private:
    // Where a thread's share begins, in bytes: at a cache line, since two threads that write one would wait.
    static std::size_t edge(int64_t num_floats, int thread, int num_threads) {
        constexpr int64_t kLine = 16;  // floats
        const int64_t first = thread == num_threads ? num_floats : num_floats * thread / num_threads / kLine * kLine;
        return static_cast<std::size_t>(first) * sizeof(float);
    }

    std::size_t first_;
    std::size_t last_;
};

inline void copy_rows(const ggml::ComputeParams & params, const ggml::Tensor * op) {
    const RowShare share(params, op->ne[0]);
    const ggml::Tensor * from = op->src[0];
    const bool has_rows = std::equal(op->ne, op->ne + ggml::kMaxDims, from->ne);
    const uint8_t * next = static_cast<const uint8_t *>(from->data);
    for (int64_t third = 0; third < op->ne[3]; ++third) {
        for (int64_t second = 0; second < op->ne[2]; ++second) {
            for (int64_t first = 0; first < op->ne[1]; ++first) {
                share.copy(at(op, first, second, third), has_rows ? at(from, first, second, third) : next);
                next += static_cast<std::size_t>(op->ne[0]) * sizeof(float);
            }
        }
    }
}

inline void choose_rows(const ggml::ComputeParams & params, const ggml::Tensor * op) {
    const RowShare share(params, op->ne[0]);
    const auto * chosen = static_cast<const int32_t *>(op->src[1]->data);
    for (int64_t row = 0; row < op->ne[1]; ++row) {
        share.copy(at(op, row, 0, 0), at(op->src[0], chosen[row], 0, 0));
    }
}

}  // namespace specllama
