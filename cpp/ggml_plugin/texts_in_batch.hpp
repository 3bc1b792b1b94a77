// Which tokens of a batch belong to one text, and the cells of the cache that this text sees.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml/ggml_layout.hpp"

namespace specllama {

// Tokens that follow each other in the batch.
struct TextInBatch {
    int64_t first;
    int64_t count;
    std::vector<int32_t> cells;  // that any of them sees, ascending
};

// mask: [tokens][cells] float16, minus infinity hides a cell. None if all tokens are of one text, as far as the mask
// shows it: tokens that see mostly the same cells count as one text.
std::vector<TextInBatch> texts_in_batch(const ggml::Tensor * mask, int64_t num_tokens);

}  // namespace specllama
