// Drafts what a function of the caller's says: history and gamma in, tokens and their q out. Costs no decode.
#pragma once

#include <vector>

#include "drafters/table.hpp"

namespace specllama {

class FunctionDrafter final : public Drafter {
public:
    explicit FunctionDrafter(DraftingFunction function) : Drafter(Source::function), function_(std::move(function)) {}

    // Once in a round. Throws std::invalid_argument for what is no offer.
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    bool can_be_paced() const override { return false; }

private:
    DraftingFunction function_;
};

}  // namespace specllama
