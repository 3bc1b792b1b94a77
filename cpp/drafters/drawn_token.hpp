// A token that is drawn from a draft's logits, and what is expected of it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

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

// The drawn token, or nothing if no token is allowed. Throws NoTokenLeft if a logit is NaN: the draft's weights are
// damaged.
std::optional<DraftToken> drawn_if_allowed(const DraftRequest & request, const Proposal & proposal, Source source,
                                           std::size_t before, float * logits, std::size_t n, const TokenList * listed);

// What is expected of a drawn token, by the probability that the draft gave it.
Expectation drawn_expectation(Source source, double probability, std::size_t before);

// Acceptance rates by the class of the confidence, and those of the next token, see DrafterPriors::drawn().
constexpr std::size_t num_confidences = 10;
using ByConfidence = std::array<double, num_confidences>;
using ByNext = std::array<double, num_confidences + 1>;

// Measured with two models of one family.
DrafterPriors drawn_priors();
DrafterPriors drawn_priors(const ByConfidence & rates, const ByNext & next, double any);

}  // namespace specllama
