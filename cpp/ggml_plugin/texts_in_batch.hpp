// Finds which tokens of a batch belong to one text, and which cells of the cache each text sees.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/ggml_layout.hpp"

namespace specllama {

// A text in a batch: tokens that follow each other.
struct TextInBatch {
    int64_t first;               // its first token's index in the batch
    int64_t count;               // the number of its tokens
    std::vector<int32_t> cells;  // the cells that at least one of these tokens sees, ascending
};

// Returns the texts of a batch; none if all tokens belong to one text. Tokens that see mostly the same cells count as
// one text.
//
// mask: [tokens][cells] float16, where minus infinity hides a cell.
std::vector<TextInBatch> texts_in_batch(const ggml::Tensor * mask, int64_t num_tokens);

}  // namespace specllama
