// The tokens of a vocabulary by the first byte of their text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama_api.hpp"

namespace specllama {

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

    static std::string text(const LlamaApi & api, const llama_vocab * vocab, int32_t token);

private:
    std::array<std::vector<int32_t>, end + 1> tokens_;
    std::array<std::vector<int32_t>, end + 1> single_;  // whose text is this byte alone
};

}  // namespace specllama
