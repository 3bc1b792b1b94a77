// Texts as sequence breakers, in the tokens of a vocabulary.
#pragma once

#include <string>
#include <vector>

#include "llama_api.hpp"
#include "sequence_breakers.hpp"

namespace specllama {

// Every token in which one of the texts occurs, or at whose end one begins, with the tokens of what is left of it: as
// llama.cpp's llama_sampler_init_dry does it. Looks at the whole vocabulary once. Throws std::invalid_argument for a
// text that is empty or longer than 40 bytes.
SequenceBreakers breakers_of_texts(const LlamaApi & api, const llama_vocab * vocab,
                                   const std::vector<std::string> & texts);

}  // namespace specllama
