// Draws a token from a draft's logits, and estimates how likely the target accepts it.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "drafters/drafter.hpp"
#include "math/token_list.hpp"

namespace specllama {

// Draws a token. The token's class depends on its confidence: its probability in q, or, if the sampler chain leaves
// only one token, its probability before the chain.
//
// logits: [n]; the call changes them. listed: the tokens of these logits, in this order; null: the tokens 0 to n - 1.
// before: the class of the token before (see Expectation). Throws NoTokenLeft if no token is allowed.
DraftToken drawn_token(const DraftRequest & request, const Proposal & proposal, Source source, std::size_t before,
                       float * logits, std::size_t n, const TokenList * listed);

// The drawn token, or nothing if no token is allowed. Throws NoTokenLeft if a logit is NaN: the draft's weights are
// damaged.
std::optional<DraftToken> drawn_if_allowed(const DraftRequest & request, const Proposal & proposal, Source source,
                                           std::size_t before, float * logits, std::size_t n, const TokenList * listed);

// The Expectation of a drawn token with this confidence (`probability`).
Expectation drawn_expectation(Source source, double probability, std::size_t before);

// Acceptance rates by the class of the token, and by the class of the token before: see DrafterPriors::classes and
// DrafterPriors::next.
constexpr std::size_t num_confidences = 10;
using ByConfidence = std::array<double, num_confidences>;
using ByNext = std::array<double, num_confidences + 1>;

// The first function returns rates that were measured with two models of one family.
DrafterPriors drawn_priors();
DrafterPriors drawn_priors(const ByConfidence & rates, const ByNext & next, double any);

}  // namespace specllama
