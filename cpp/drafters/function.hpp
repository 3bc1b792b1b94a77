// Drafts the tokens that a caller's function returns: it is called with history and gamma, and returns tokens and their
// q. Needs no decode.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "drafters/drafter.hpp"

namespace specllama {

// At most request.gamma tokens, and a distribution q for each. Nobody can check from which distribution a token was
// drawn. So the function must draw each token from its q, or choose it by the history alone and return a q of this
// token only.
struct DraftedByFunction {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
};
using DraftingFunction = std::function<DraftedByFunction(const DraftRequest & request)>;

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
