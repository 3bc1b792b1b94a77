// One product of a mixture's packed experts with the activations of a batch, shared out to ggml's threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama {

// An expert that several tokens have chosen is read and unpacked once for all of them. What a token gets from an expert
// does not depend on who else has chosen it.
class ExpertProduct {
public:
    // op: a MUL_MAT_ID of packed weights [columns, rows, experts], float activations [columns, 1 or more, tokens] and
    // the experts' numbers [used, tokens]. See fits.
    ExpertProduct(const kernels::InstructionSet & set, kernels::QuantizedType type, const ggml::Tensor * op);

    // Whether a MUL_MAT_ID's activations, numbers and result are as they are needed here.
    static bool fits(const ggml::Tensor * op);

    // What all threads share, what each has for itself, then the tiles.
    std::size_t work_bytes(int num_threads) const;

    // A thread's share of quantizing the activations. Afterwards all threads wait for one another.
    void quantize(const ggml::ComputeParams & params) const;

    // Panels of experts until none is left.
    void multiply(const ggml::ComputeParams & params) const;

private:
    // A choice is a token and one of the experts that it has chosen: token * used + which. The columns of an expert are
    // its choices. Each thread finds out for itself who has chosen whom: that is quicker than to wait for another one.
    struct Place {
        int32_t tile;    // its first column
        int16_t width;   // of the tile
        int16_t column;  // within it
    };
    struct Columns {
        int32_t * first;      // [experts + 1]: the first column of each expert
        int32_t * chosen_by;  // [choices]: the choice whose column it is
        int32_t * busy;       // [experts]: those that are chosen, the most often chosen first
        int32_t * num_busy;
        Place * places;  // [choices]
    };

    int32_t expert(int64_t choice) const;
    std::size_t columns_bytes() const;
    Columns columns_of(const ggml::ComputeParams & params) const;
    void sort(const Columns & columns) const;
    kernels::Tiles tiles_of(const Columns & columns, int32_t expert) const;
    uint8_t * tiles(const ggml::ComputeParams & params) const;
    void multiply_panels(const Columns & columns, uint8_t * tiles, int32_t expert, int64_t first, int64_t last) const;
    void multiply_one(const uint8_t * panel, const uint8_t * tile, const int32_t * choices, int width,
                      int64_t first_row) const;
    float * result(int64_t choice) const;

    const kernels::InstructionSet & set_;
    kernels::QuantizedType type_;
    kernels::Layout layout_;
    int column_bytes_;  // of a block of one column in a tile
    const ggml::Tensor * op_;
    int64_t num_blocks_;  // of a row
    int64_t num_rows_;    // of an expert
    int64_t num_panels_;  // of an expert
    int64_t num_experts_;
    int64_t num_used_;  // by each token
    int64_t num_choices_;
};

}  // namespace specllama
