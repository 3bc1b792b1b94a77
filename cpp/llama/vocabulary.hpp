// What a vocabulary knows about its tokens: their texts, which tokens end a text, and how two vocabularies differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llama/llama_api.hpp"

namespace specllama {

// The text that a token adds. special: whether a token that adds no text gives its name instead.
std::string piece_of(const LlamaApi & api, const llama_vocab * vocab, int32_t token, bool special);

struct TokenPieces {
    std::vector<std::string> pieces;
    std::vector<int32_t> ends;  // the tokens that end a text
};

// The pieces of all tokens. The piece of a token that ends a text, or that adds no text, is the byte 0xff (which no
// text has) and then the token's name.
TokenPieces token_pieces(const LlamaApi & api, const llama_vocab * vocab);

// A token's name, and the text that the token adds; empty if it adds none, or ends a text.
struct TokenWord {
    std::string name;
    std::string piece;
};

// One for each token of the vocabulary.
std::vector<TokenWord> token_words(const LlamaApi & api, const llama_vocab * vocab);

// The texts of all tokens, as llama.cpp detokenizes each of them alone.
class TokenTexts {
public:
    TokenTexts(const LlamaApi & api, const llama_vocab * vocab);

    int32_t size() const { return static_cast<int32_t>(ends_.size()); }
    std::string of(int32_t token) const;

private:
    std::string all_;                // the texts, one after the other
    std::vector<std::size_t> ends_;  // where each token's text ends in all_
};

struct VocabularyDifference {
    int32_t token;
    std::string target_text;
    std::string draft_text;
};

// The first token whose text differs, among the ids that both vocabularies have.
std::optional<VocabularyDifference> first_difference(const LlamaApi & api, const llama_vocab * target,
                                                     const llama_vocab * draft);

// For each token of the target, the draft's token of the same name that writes the same text, at any id; -1 if there is
// none. So a special token never matches text that spells it, and a byte never matches letters that name it.
std::vector<int32_t> common_tokens(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft);

}  // namespace specllama
