// Drafts the tokens that a caller's function returns: it is called with history and gamma, and returns tokens and their
// q. Needs no decode.
#pragma once

#include <vector>

#include "drafters/table.hpp"

namespace specllama {

class FunctionDrafter final : public Drafter {
public:
    explicit FunctionDrafter(DraftingFunction function) : Drafter(Source::function), function_(std::move(function)) {}

    // Calls the function once in a round. Throws std::invalid_argument if the result is not usable.
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    bool can_be_paced() const override { return false; }

private:
    DraftingFunction function_;
};

}  // namespace specllama
