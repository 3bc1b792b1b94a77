// The end of the chain: llama.cpp's XTC and its temperature, fixed or dynamic, make probabilities of candidates.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "math/distribution.hpp"
#include "math/logits_scan.hpp"
#include "math/sampler_params.hpp"

namespace specllama {

// XTC ("exclude top choices", by p-e-w) takes away all but the least of the tokens that reach a threshold, with a
// probability a. So the next token has the distribution (1 - a) p + a p', where p is tempered without and p' with those
// tokens away. That is what is computed here: no coin is tossed, so that p and q stay functions of the text.

// Of candidates in descending order, of which the truncation has left `kept` among n_vocab. Throws NoTokenLeft if there
// is none.
void temper(const SamplerParams & params, const std::vector<Candidate> & kept, std::size_t n_vocab, Distribution & out);

// Of a whole vocabulary of logits.
void temper(const SamplerParams & params, const float * logits, std::size_t n_vocab, Distribution & out);

// The same without XTC and temperature.
void softmax(const float * logits, std::size_t n_vocab, Distribution & out);

// Nothing can be sampled.
struct NoTokenLeft : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] void no_token_left();

}  // namespace specllama
