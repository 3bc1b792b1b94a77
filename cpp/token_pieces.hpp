// What each token of a vocabulary adds to a text, and which tokens end one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama_api.hpp"

namespace specllama {

struct TokenPieces {
    std::vector<std::string> pieces;
    std::vector<std::int32_t> ends;
};

// A token that ends a text, or that no text shows, is the byte 0xff (which no text has) and its name.
TokenPieces token_pieces(const LlamaApi & api, const llama_vocab * vocab);

}  // namespace specllama
