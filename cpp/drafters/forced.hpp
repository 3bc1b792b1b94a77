// Drafts that cost nothing: what a grammar leaves no choice about.
#pragma once

#include <optional>

#include "../drafter.hpp"
#include "lookup.hpp"

namespace specllama {

// The token that the constraint, if there is one, forces behind history and proposal.
std::optional<Constraint::Forced> forced_token(const DraftRequest & request, const Proposal & proposal);

// All that it forces there one after another: at most `most` tokens, a function of history and proposal alone.
Lookup::Found forced_tokens(const DraftRequest & request, const Proposal & proposal, std::size_t most);

// Drops guesses from the first one on that the constraint does not allow behind history and proposal.
void drop_forbidden(const DraftRequest & request, const Proposal & proposal, Lookup::Found & guesses);

}  // namespace specllama
