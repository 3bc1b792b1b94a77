// One product of the packed experts of a mixture with the activations of a batch, divided among ggml's threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/panel_reader.hpp"

namespace specllama {

// An expert that several tokens have chosen is read and unpacked once for all of them. An expert's result for a token
// does not depend on the other tokens that have chosen the expert.
class ExpertProduct {
public:
    // op: a MUL_MAT_ID of packed weights [columns, rows, experts], float activations [columns, 1 or more, tokens] and
    // the experts' numbers [used, tokens], for which fits() is true.
    ExpertProduct(const kernels::InstructionSet & set, kernels::QuantizedType type, const ggml::Tensor * op);

    // Whether the activations, numbers and result of a MUL_MAT_ID have the shapes and types that this class needs.
    static bool fits(const ggml::Tensor * op);

    // The bytes of working memory: the counter that all threads share, then the columns of each thread, then the tiles.
    std::size_t work_bytes(int num_threads) const;

    // Does a thread's share of quantizing the activations. The caller then lets all threads wait for one another.
    void quantize(const ggml::ComputeParams & params) const;

    // Multiplies panels of experts until none is left.
    void multiply(const ggml::ComputeParams & params) const;

private:
    // A choice is a token and one of its experts. Each token has `used` experts, numbered from 0, so the choice of
    // expert `which` of a token has the number token * used + which. The columns of an expert are the choices of this
    // expert. Each thread sorts the choices for itself, because waiting for another thread would take longer.
    struct Place {       // where the column of a choice is
        int32_t tile;    // the first column of its tile
        int16_t width;   // the columns of this tile
        int16_t column;  // the column's index in the tile
    };
    struct Columns {
        int32_t * first;      // [experts + 1]: the first column of each expert
        int32_t * chosen_by;  // [choices]: the choice of each column
        int32_t * busy;       // [experts]: the chosen experts, the most often chosen first
        int32_t * num_busy;   // how many experts are chosen
        Place * places;       // [choices]: the place of each choice
    };

    int32_t expert(int64_t choice) const;
    std::size_t columns_bytes() const;
    Columns columns_of(const ggml::ComputeParams & params) const;
    void sort(const Columns & columns) const;
    kernels::Tiles tiles_of(const Columns & columns, int32_t expert) const;
    uint8_t * tiles(const ggml::ComputeParams & params) const;
    void multiply_panels(const Columns & columns, uint8_t * tiles, int32_t expert, int64_t first, int64_t last) const;
    void multiply_one(const kernels::PanelReader & reader, const uint8_t * panel, const uint8_t * tile,
                      const int32_t * choices, int width, int64_t first_row) const;
    float * result(int64_t choice) const;

    const kernels::InstructionSet & set_;
    kernels::QuantizedType type_;
    kernels::Layout layout_;
    int column_bytes_;  // bytes of a block of one column in a tile
    const ggml::Tensor * op_;
    int64_t num_blocks_;  // blocks of a row
    int64_t num_rows_;    // rows of an expert
    int64_t num_panels_;  // panels of an expert
    int64_t num_experts_;
    int64_t num_used_;  // experts that each token uses
    int64_t num_choices_;
};

}  // namespace specllama
