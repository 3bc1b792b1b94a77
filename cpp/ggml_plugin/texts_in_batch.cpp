#include "ggml_plugin/texts_in_batch.hpp"

#include "ggml/tensors.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

namespace {

const uint16_t * row_of(const ggml::Tensor * mask, int64_t token) {
    return reinterpret_cast<const uint16_t *>(at(mask, token, 0, 0));
}

// Whether the second token sees at least half of the cells that the first one sees. Each argument is a row of the mask.
bool see_the_same(const uint16_t * one, const uint16_t * other, int64_t cells) {
    int64_t seen = 0;
    int64_t both = 0;
    for (int64_t i = 0; i < cells; ++i) {
        seen += one[i] != kernels::kHidden ? 1 : 0;
        both += one[i] != kernels::kHidden && other[i] != kernels::kHidden ? 1 : 0;
    }
    return 2 * both >= seen;
}

std::vector<int32_t> seen_cells(const ggml::Tensor * mask, int64_t first, int64_t count) {
    std::vector<uint8_t> sees(static_cast<std::size_t>(mask->ne[0]), 0);
    for (int64_t token = first; token < first + count; ++token) {
        const uint16_t * row = row_of(mask, token);
        for (std::size_t i = 0; i < sees.size(); ++i) {
            sees[i] |= row[i] != kernels::kHidden ? 1 : 0;
        }
    }
    std::vector<int32_t> cells;
    for (std::size_t i = 0; i < sees.size(); ++i) {
        if (sees[i] != 0) {
            cells.push_back(static_cast<int32_t>(i));
        }
    }
    return cells;
}

}  // namespace

std::vector<TextInBatch> texts_in_batch(const ggml::Tensor * mask, int64_t num_tokens) {
    // The tokens of a text stand together, so a batch that begins and ends with the same text has no other.
    if (num_tokens == 1 || see_the_same(row_of(mask, 0), row_of(mask, num_tokens - 1), mask->ne[0])) {
        return {};
    }
    std::vector<TextInBatch> texts;
    for (int64_t token = 0; token < num_tokens; ++token) {
        if (token == 0 || !see_the_same(row_of(mask, token - 1), row_of(mask, token), mask->ne[0])) {
            texts.push_back({token, 0, {}});
        }
        texts.back().count += 1;
    }
    if (texts.size() == 1) {  // one text, whose sliding window moves on
        return {};
    }
    for (TextInBatch & text : texts) {
        text.cells = seen_cells(mask, text.first, text.count);
    }
    return texts;
}

}  // namespace specllama
