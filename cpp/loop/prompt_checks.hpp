// Checks of a prompt's tokens and length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "llama/sequence.hpp"

namespace specllama {

// Throws std::invalid_argument if the vocabulary lacks one of tokens[first..].
void refuse_bad_tokens(const std::vector<int32_t> & tokens, std::size_t first, const Decoder & target);

// Throws std::invalid_argument for a prompt that is empty, does not fit, or has a bad token.
void refuse_bad_prompt(const std::vector<int32_t> & prompt, const Sequence & target);

}  // namespace specllama
