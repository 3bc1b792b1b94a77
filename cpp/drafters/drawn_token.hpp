// A token that is drawn from a draft's logits, and what is expected of it.
#pragma once

#include <cstddef>

#include "drafters/drafter.hpp"
#include "math/token_list.hpp"

namespace specllama {

// How sure the draft was of the token is its probability, before the chain where that leaves only one token.
//
// logits: [n], which change. listed: the tokens that they are of, in this order; null: 0 to n. before: see Expectation.
// Throws NoTokenLeft where no token is allowed.
DraftToken drawn_token(const DraftRequest & request, const Proposal & proposal, Source source, std::size_t before,
                       float * logits, std::size_t n, const TokenList * listed);

// A drawn token, by the probability that the draft gave it.
Expectation drawn_expectation(Source source, double probability, std::size_t before);

// What a pair of models of one family showed.
DrafterPriors drawn_priors();

}  // namespace specllama
