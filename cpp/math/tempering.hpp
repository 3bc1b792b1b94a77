// The end of the sampler chain: XTC and the temperature, fixed or dynamic as in llama.cpp, turn candidates into
// probabilities.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "math/distribution.hpp"
#include "math/logits_scan.hpp"
#include "math/sampler_params.hpp"

namespace specllama {

// XTC ("exclude top choices", by p-e-w): with a probability a, XTC takes away all tokens whose probability reaches a
// threshold, except the least probable of these. So the next token has the distribution (1 - a) p + a p', where p is
// tempered with all tokens, and p' without the tokens that XTC takes away. This mixture is computed here. No random
// number is drawn, so p and q stay functions of the text.

// Turns the logits of `kept` into probabilities: the candidates that truncation has left of n_vocab, in descending
// order. Throws NoTokenLeft if there is none.
void temper(const SamplerParams & params, const std::vector<Candidate> & kept, std::size_t n_vocab, Distribution & out);

// Turns the logits of a whole vocabulary into probabilities.
void temper(const SamplerParams & params, const float * logits, std::size_t n_vocab, Distribution & out);

// softmax of the logits of a whole vocabulary, without XTC and temperature.
void softmax(const float * logits, std::size_t n_vocab, Distribution & out);

// The error that no token can be sampled.
struct NoTokenLeft : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] void no_token_left();

}  // namespace specllama
