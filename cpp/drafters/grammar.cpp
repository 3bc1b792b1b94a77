// Drafts what a grammar leaves no choice about.
#include "drafters/grammar.hpp"

#include "drafters/table.hpp"

namespace specllama {

namespace {

constexpr std::size_t most_forced = 4;  // tokens at a time: each has to be looked for

}  // namespace

Offer GrammarDrafter::offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) {
    Offer offer;
    Constraint * constraint = request.chain.constraint();
    if (constraint == nullptr) {
        return offer;
    }
    std::vector<int32_t> recent = request.recent(proposal);
    while (offer.tokens.size() < std::min(most, most_forced)) {
        const auto forced = constraint->forced(recent.data(), recent.size());
        if (!forced) {
            break;
        }
        offer.num_certain += forced->alone && offer.num_certain == offer.tokens.size() ? 1 : 0;
        offer.append(forced->token, grammar_expectation(forced->alone));
        recent.push_back(forced->token);
    }
    return offer;
}

DrafterPriors grammar_priors() { return DrafterPriors::apart({0.995, 0.7}); }

std::unique_ptr<Drafter> make_grammar(const DrafterParts &) { return std::make_unique<GrammarDrafter>(); }

}  // namespace specllama
