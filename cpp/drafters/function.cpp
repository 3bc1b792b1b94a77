// Drafts what a function of the caller's says.
#include "function.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "../drafter_parts.hpp"

namespace specllama {

namespace {

void require_usable(const DraftRequest & request, const Offer & offer) {
    const std::size_t count = offer.tokens.size();
    if (count > request.gamma || offer.q.size() != count) {
        throw std::invalid_argument("the drafter gave " + std::to_string(count) + " tokens and " +
                                    std::to_string(offer.q.size()) + " distributions: at most " +
                                    std::to_string(request.gamma) + " of each were asked for");
    }
    for (std::size_t i = 0; i < count; ++i) {
        const int32_t token = offer.tokens[i];
        if (token < 0 || static_cast<std::size_t>(token) >= request.target.n_vocab() || !(offer.q[i].of(token) > 0.0)) {
            throw std::invalid_argument("the drafter gave token " + std::to_string(token) + " at position " +
                                        std::to_string(i) + ": it must be one of the target's " +
                                        std::to_string(request.target.n_vocab()) +
                                        ", with a probability above 0 in its q");
        }
    }
}

void cut_behind_end(const DraftRequest & request, Offer & out) {
    const auto end = std::find_if(out.tokens.begin(), out.tokens.end(),
                                  [&request](int32_t token) { return request.target.is_eog(token); });
    if (end != out.tokens.end()) {
        out.cut(static_cast<std::size_t>(end - out.tokens.begin()) + 1);
    }
}

}  // namespace

Offer FunctionDrafter::offer(const DraftRequest & request, const Proposal & proposal, std::size_t) {
    Offer offer;
    if (!proposal.tokens.empty()) {
        return offer;
    }
    function_(request, offer);
    require_usable(request, offer);
    offer.expectations.assign(offer.tokens.size(), {Source::function, 0, 0});
    cut_behind_end(request, offer);
    return offer;
}

DrafterPriors function_priors() { return DrafterPriors::apart({0.5}); }

std::unique_ptr<Drafter> make_function(const DrafterParts & parts) {
    if (!parts.function) {
        throw std::invalid_argument("the drafter 'function' needs a function");
    }
    return std::make_unique<FunctionDrafter>(parts.function);
}

}  // namespace specllama
