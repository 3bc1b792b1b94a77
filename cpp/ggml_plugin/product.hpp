// One product of packed weights with columns of activations, divided among ggml's threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/panel_reader.hpp"
#include "kernels/this_decode.hpp"

namespace specllama {

class Product {
public:
    // Whether the shapes of an operation belong together: weights [columns, rows] and activations [columns, n, ...], or
    // as many matrices of each: [columns, rows, matrices] and [columns, n, matrices].
    static bool fits(const ggml::Tensor * op);

    // op: a MUL_MAT of packed weights and float activations.
    Product(const kernels::InstructionSet & set, kernels::QuantizedType type, const ggml::Tensor * op);

    // The bytes of working memory, which all threads share: the counter of panels that are taken, then the tiles.
    std::size_t work_bytes() const;

    // Does a thread's share of quantizing the activations. The caller then lets all threads wait for one another.
    //
    // wanted: the panels that all threads are to multiply; null: all. Only the first thread's argument counts.
    void quantize(const ggml::ComputeParams & params, const WantedPanels * wanted) const;

    // Multiplies panels of weights until none is left. The results of rows that are not wanted are not written.
    void multiply(const ggml::ComputeParams & params) const;

private:
    void multiply_panels(uint8_t * work, const int32_t * panels, int64_t first, int64_t last) const;
    void multiply_one(const uint8_t * weights, uint8_t * work, int64_t matrix, int64_t tile, int64_t panel) const;
    const uint8_t * weights(int64_t matrix, int64_t panel) const;
    const float * column(const ggml::Tensor * tensor, int64_t index) const;
    uint8_t * tile(uint8_t * work, int64_t matrix, int64_t index) const;

    const kernels::InstructionSet & set_;
    kernels::QuantizedType type_;
    kernels::Layout layout_;
    kernels::TileShape shape_;
    int64_t num_matrices_;
    kernels::Tiles tiles_;  // of the columns of a matrix
    const ggml::Tensor * op_;
    int64_t num_blocks_;  // blocks of a row
    int64_t num_rows_;
    int64_t num_panels_;  // of a matrix
    kernels::PanelReader reader_;
    bool is_even_;  // whether the distance from each column of the result to the next is the same
};

}  // namespace specllama
