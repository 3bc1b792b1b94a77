// Drafts what a function of the caller's says: history and gamma in, tokens and their q out. Costs no decode.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "drafters/drafter.hpp"

namespace specllama {

// At most request.gamma tokens, and as many distributions. What it says of q is believed: each token must have been
// drawn from its q, or from nothing but the history with a q of one token.
struct DraftedByFunction {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
};
using DraftingFunction = std::function<DraftedByFunction(const DraftRequest & request)>;

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
