// Texts as sequence breakers, in the tokens of a vocabulary.
#pragma once

#include <string>
#include <vector>

#include "llama/llama_api.hpp"
#include "llama/vocabulary.hpp"
#include "math/sequence_breakers.hpp"

namespace specllama {

// Every token in which one of the texts occurs, or at whose end one begins, with the tokens of what is left of it: as
// llama.cpp's llama_sampler_init_dry does it. Reads each token's text once, however many texts there are. Throws
// std::invalid_argument for more than 64 texts, and for one that is empty or longer than 40 bytes.
SequenceBreakers breakers_of_texts(const LlamaApi & api, const llama_vocab * vocab, const TokenTexts & words,
                                   const std::vector<std::string> & texts);

}  // namespace specllama
