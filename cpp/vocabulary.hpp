// Whether two models speak of the same tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llama_api.hpp"

namespace specllama {

struct VocabularyDifference {
    int32_t token;
    std::string target_text;
    std::string draft_text;
};

// The first token whose text differs, among those that both vocabularies have. Rows beyond the shorter one are
// padding: the target may not need them, and for the draft their q is zero.
inline std::optional<VocabularyDifference> first_difference(const LlamaApi & api, const llama_vocab * target,
                                                            const llama_vocab * draft) {
    const int32_t target_size = api.llama_vocab_n_tokens(target);
    const int32_t draft_size = api.llama_vocab_n_tokens(draft);
    for (int32_t token = 0; token < target_size && token < draft_size; ++token) {
        std::string target_text = api.llama_vocab_get_text(target, token);
        std::string draft_text = api.llama_vocab_get_text(draft, token);
        if (target_text != draft_text) {
            return VocabularyDifference{token, std::move(target_text), std::move(draft_text)};
        }
    }
    return std::nullopt;
}

}  // namespace specllama
