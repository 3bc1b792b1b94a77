// Drafts the tokens that a grammar forces.
#include "drafters/grammar.hpp"

#include "drafters/table.hpp"

namespace specllama {

namespace {

constexpr std::size_t most_forced = 4;  // the most tokens of one offer: each token takes time to find

}  // namespace

std::vector<DraftToken> GrammarDrafter::offer(const DraftRequest & request, const Proposal & proposal,
                                              std::size_t most) {
    std::vector<DraftToken> offer;
    Constraint * constraint = request.chain.constraint();
    if (constraint == nullptr) {
        return offer;
    }
    std::vector<int32_t> recent = request.recent(proposal);
    while (offer.size() < std::min(most, most_forced)) {
        const auto found = constraint->forced(recent.data(), recent.size());
        if (!found) {
            break;
        }
        const bool is_certain = found->is_unique && (offer.empty() || offer.back().forced);
        offer.push_back({found->token, grammar_expectation(found->is_unique), {}, is_certain});
        recent.push_back(found->token);
    }
    return offer;
}

DrafterPriors grammar_priors() { return DrafterPriors::apart({0.995, 0.7}); }

}  // namespace specllama
