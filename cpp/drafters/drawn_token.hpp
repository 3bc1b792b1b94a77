// A token that is drawn from a draft's logits, and what is expected of it.
#pragma once

#include <cstddef>

#include "drafters/drafter.hpp"
#include "math/token_list.hpp"

namespace specllama {

// Draws a token. Its confidence is its probability q; if the chain leaves only one token, its probability before the
// chain.
//
// logits: [n], which are changed. listed: the tokens of these logits, in this order; null: the tokens 0 to n - 1.
// before: see Expectation. Throws NoTokenLeft if no token is allowed.
DraftToken drawn_token(const DraftRequest & request, const Proposal & proposal, Source source, std::size_t before,
                       float * logits, std::size_t n, const TokenList * listed);

// What is expected of a drawn token, by the probability that the draft gave it.
Expectation drawn_expectation(Source source, double probability, std::size_t before);

// Measured with two models of one family.
DrafterPriors drawn_priors();

}  // namespace specllama
