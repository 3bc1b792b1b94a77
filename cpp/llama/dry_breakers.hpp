// Translates DRY sequence breakers from texts to tokens.
#pragma once

#include <string>
#include <vector>

#include "llama/llama_api.hpp"
#include "llama/vocabulary.hpp"
#include "math/sequence_breakers.hpp"

namespace specllama {

// The tokens that contain one of the texts, or end with the beginning of one, each with the tokens of the rest of that
// text. llama.cpp's llama_sampler_init_dry finds the same tokens. This function reads each token's text only once, for
// any number of texts. Throws std::invalid_argument for more than 64 texts, or for a text that is empty or longer than
// 40 bytes.
SequenceBreakers breakers_of_texts(const LlamaApi & api, const llama_vocab * vocab, const TokenTexts & words,
                                   const std::vector<std::string> & texts);

}  // namespace specllama
