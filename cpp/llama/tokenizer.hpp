// The tokens of any text: no text ends the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama/llama_api.hpp"

namespace specllama {

// How deep llama.cpp's recursion goes in a text. llama.cpp splits some texts by std::regex, which calls itself for
// every character of a match. With libstdc++, 26,300 letters without a space overflow a stack of 8 MiB and end the
// process.
struct TokenizerDepth {
    std::size_t bytes = 0;      // of stack for each character of a match; 0: no recursion
    bool spaces_end = true;     // a match ends before a space that follows another character
    bool lines_end = true;      // a match ends before a letter or digit that follows the end of a line
    bool letters_begin = true;  // a match ends before a letter that follows another ASCII character
};

// An upper bound of the number of characters in one match.
std::size_t longest_match(const std::string & text, const TokenizerDepth & depth);

class Tokenizer {
public:
    Tokenizer(const LlamaApi & api, const llama_vocab * vocab) : api_(api), vocab_(vocab) {}

    // Throws std::invalid_argument if no stack is large enough for llama.cpp, or if llama.cpp cannot tokenize the text.
    std::vector<int32_t> tokens(const std::string & text, bool add_bos, bool special) const;

    // Bytes of stack that llama.cpp's own tokenizer needs for a text; 0 if they are few enough for any thread.
    std::size_t stack_for(const std::string & text) const;

    // Measured at the first call, in some milliseconds.
    TokenizerDepth depth() const;

    // llama_tokenize for code that passes a Tokenizer as the vocabulary. A text that is refused gives no tokens.
    static int32_t tokenize(const Tokenizer * self, const char * text, int32_t size, int32_t * tokens, int32_t room,
                            bool add_bos, bool special) noexcept;

private:
    std::vector<int32_t> direct(const std::string & text, bool add_bos, bool special) const;
    TokenizerDepth measured() const;
    std::size_t used_by(const std::string & text) const;

    const LlamaApi & api_;
    const llama_vocab * vocab_;
    mutable std::atomic<std::int64_t> known_{-1};  // the depth packed into one number, so that no lock is needed
};

}  // namespace specllama
