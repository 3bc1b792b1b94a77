// The tokens of a text, whatever it is: no text ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama/llama_api.hpp"

namespace specllama {

// How deep llama.cpp goes in a text. It cuts some texts by std::regex, which calls itself for every character of a
// match: with libstdc++ 26,300 letters without a space fill a stack of 8 MiB, and end the process.
struct TokenizerDepth {
    std::size_t bytes = 0;      // of stack for each character of a match; 0: it has code of its own
    bool spaces_end = true;     // no match goes on behind a space that is behind something else
    bool lines_end = true;      // one begins at a letter or digit behind the end of a line
    bool letters_begin = true;  // one begins at a letter that is behind something else in ASCII
};

// How many characters one match may have.
std::size_t longest_match(const std::string & text, const TokenizerDepth & depth);

class Tokenizer {
public:
    Tokenizer(const LlamaApi & api, const llama_vocab * vocab) : api_(api), vocab_(vocab) {}

    // Throws std::invalid_argument: no stack holds what llama.cpp would need, or it cannot tokenize the text.
    std::vector<int32_t> tokens(const std::string & text, bool add_bos, bool special) const;

    // Bytes of stack that llama.cpp's own tokenizer takes for a text, if it is more than always fits; else 0.
    std::size_t stack_for(const std::string & text) const;

    // Measured when it is first needed, in some milliseconds.
    TokenizerDepth depth() const;

    // llama_tokenize for others, whose vocabulary is a Tokenizer. What it refuses has no tokens.
    static int32_t tokenize(const Tokenizer * self, const char * text, int32_t size, int32_t * tokens, int32_t room,
                            bool add_bos, bool special) noexcept;

private:
    std::vector<int32_t> direct(const std::string & text, bool add_bos, bool special) const;
    TokenizerDepth measured() const;
    std::size_t used_by(const std::string & text) const;

    const LlamaApi & api_;
    const llama_vocab * vocab_;
    mutable std::atomic<std::int64_t> known_{-1};  // the depth in one number: no thread waits, none holds a lock
};

}  // namespace specllama
