// What a vocabulary says of its tokens: their texts, which ones end a text, and whether two vocabularies are the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llama/llama_api.hpp"

namespace specllama {

// What a token adds to a text. special: the name of a token that no text shows, too.
std::string piece_of(const LlamaApi & api, const llama_vocab * vocab, int32_t token, bool special);

struct TokenPieces {
    std::vector<std::string> pieces;
    std::vector<int32_t> ends;  // the tokens that end a text
};

// A token that ends a text, or that no text shows, is the byte 0xff (which no text has) and its name.
TokenPieces token_pieces(const LlamaApi & api, const llama_vocab * vocab);

// What a token is called, and what it adds to a text: nothing, if no text shows it or it ends one.
struct TokenWord {
    std::string name;
    std::string piece;
};

// Of all tokens.
std::vector<TokenWord> token_words(const LlamaApi & api, const llama_vocab * vocab);

// The tokens by the first byte of their text.
class FirstBytes {
public:
    FirstBytes(const LlamaApi & api, const llama_vocab * vocab);

    static constexpr std::size_t end = 256;  // in the place of a byte: the tokens that end a text

    // Tokens with a text that begins with this byte.
    const std::vector<int32_t> & tokens(std::size_t byte) const { return tokens_[byte]; }
    // Enough of them to tell whether any may come next: a grammar that forbids these forbids longer ones, too.
    const std::vector<int32_t> & probes(std::size_t byte) const {
        return single_[byte].empty() ? tokens_[byte] : single_[byte];
    }

private:
    std::array<std::vector<int32_t>, end + 1> tokens_;
    std::array<std::vector<int32_t>, end + 1> single_;  // whose text is this byte alone
};

// The texts of all tokens, as they are after another token.
class TokenTexts {
public:
    TokenTexts(const LlamaApi & api, const llama_vocab * vocab);

    int32_t size() const { return static_cast<int32_t>(ends_.size()); }
    std::string of(int32_t token) const;

private:
    std::string all_;                // one after the other
    std::vector<std::size_t> ends_;  // of each token's text in `all_`
};

struct VocabularyDifference {
    int32_t token;
    std::string target_text;
    std::string draft_text;
};

// The first token whose text differs, among the ids that both vocabularies have.
std::optional<VocabularyDifference> first_difference(const LlamaApi & api, const llama_vocab * target,
                                                     const llama_vocab * draft);

// For each of the target's tokens the draft's with the same text that writes the same, whatever its id; -1: there is
// none. So a special token is none of text, and a byte none of letters that name it.
std::vector<int32_t> common_tokens(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft);

}  // namespace specllama
