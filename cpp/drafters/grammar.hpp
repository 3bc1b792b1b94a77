// Drafts the tokens that a grammar forces. Needs no decode.
#pragma once

#include "drafters/drafter.hpp"

namespace specllama {

class GrammarDrafter final : public Drafter {
public:
    GrammarDrafter() : Drafter(Source::grammar) {}

    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    bool forces() const override { return true; }
};

// The Expectation of a token that a grammar forces. is_unique: see Constraint::Forced.
inline Expectation grammar_expectation(bool is_unique) { return {Source::grammar, is_unique ? 0U : 1U, 0}; }

}  // namespace specllama
