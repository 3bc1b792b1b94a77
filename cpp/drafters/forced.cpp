// Drafts that cost nothing: what a grammar leaves no choice about.
#include "forced.hpp"

namespace specllama {

namespace {

// What was generated in this call, and drafted behind it.
std::vector<int32_t> recent_tokens(const DraftRequest & request, const Proposal & proposal) {
    std::vector<int32_t> recent(request.history.begin() + static_cast<std::ptrdiff_t>(request.prompt_size),
                                request.history.end());
    recent.insert(recent.end(), proposal.tokens.begin(), proposal.tokens.end());
    return recent;
}

}  // namespace

std::optional<Constraint::Forced> forced_token(const DraftRequest & request, const Proposal & proposal) {
    if (request.chain.constraint() == nullptr) {
        return std::nullopt;
    }
    const std::vector<int32_t> recent = recent_tokens(request, proposal);
    return request.chain.constraint()->forced(recent.data(), recent.size());
}

Lookup::Found forced_tokens(const DraftRequest & request, const Proposal & proposal, std::size_t most) {
    Lookup::Found found;
    if (request.chain.constraint() == nullptr) {
        return found;
    }
    std::vector<int32_t> recent = recent_tokens(request, proposal);
    while (found.tokens.size() < most) {
        const auto forced = request.chain.constraint()->forced(recent.data(), recent.size());
        if (!forced) {
            break;
        }
        found.tokens.push_back(forced->token);
        found.expectations.push_back(Expectation::of_grammar(forced->alone));
        recent.push_back(forced->token);
    }
    return found;
}

void drop_forbidden(const DraftRequest & request, const Proposal & proposal, Lookup::Found & guesses) {
    if (request.chain.constraint() == nullptr) {
        return;
    }
    std::vector<int32_t> recent = recent_tokens(request, proposal);
    std::size_t count = 0;
    for (; count < guesses.tokens.size(); ++count) {
        Candidate guess{guesses.tokens[count], 0.0F};
        request.chain.constraint()->forbid(recent.data(), recent.size(), &guess, 1);
        if (guess.logit < 0.0F) {
            break;
        }
        recent.push_back(guess.id);
    }
    guesses.tokens.resize(count);
    guesses.expectations.resize(count);
}

}  // namespace specllama
