// Drafts what a function of the caller's says: history and gamma in, tokens and their q out. Costs no decode.
#pragma once

#include <functional>

#include "drafters/drafter.hpp"

namespace specllama {

class FunctionDrafter final : public Drafter {
public:
    // Fills an empty offer with at most request.gamma tokens. What it says of q is believed: each token must have been
    // drawn from its q, or from nothing but the history with a q of one token.
    using Function = std::function<void(const DraftRequest & request, Offer & out)>;

    explicit FunctionDrafter(Function function) : Drafter(Source::function), function_(std::move(function)) {}

    // Once in a round. Throws std::invalid_argument for an offer that is not one.
    Offer offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    bool can_be_paced() const override { return false; }

private:
    Function function_;
};

}  // namespace specllama
