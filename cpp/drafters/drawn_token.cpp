// Draws a token from a draft's logits, and estimates how likely the target accepts it.
#include "drafters/drawn_token.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "math/logits_scan.hpp"
#include "math/tempering.hpp"

namespace specllama {

namespace {

// The confidences that separate the classes, and acceptance rates measured with two models of one family on code, prose
// and questions (greedy).
constexpr std::array<double, num_confidences - 1> confidences{0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995};
constexpr ByConfidence confidence_priors{0.26, 0.37, 0.52, 0.69, 0.82, 0.92, 0.95, 0.98, 0.99, 0.995};
constexpr ByNext next_priors{0.65, 0.65, 0.74, 0.78, 0.78, 0.80, 0.81, 0.86, 0.90, 0.95, 0.75};
constexpr double any_prior = 0.75;

}  // namespace

DraftToken drawn_token(const DraftRequest & request, const Proposal & proposal, Source source, std::size_t before,
                       float * logits, std::size_t n, const TokenList * listed) {
    const std::vector<int32_t> recent = request.recent(proposal);
    Distribution q;
    if (listed != nullptr) {
        request.chain.apply(*listed, logits, n, recent.data(), recent.size(), q);
    } else {
        request.chain.apply(logits, n, recent.data(), recent.size(), q);
    }
    const int32_t token = request.rule.draw(q, request.noise, proposal.tokens.size());
    const double confidence =
        request.paced && q.size() == 1 ? 1.0 / sum_exp(logits, n, largest(logits, n), 1.0F) : q.of(token);
    return DraftToken{token, drawn_expectation(source, confidence, before), std::move(q), false, n};
}

std::optional<DraftToken> drawn_if_allowed(const DraftRequest & request, const Proposal & proposal, Source source,
                                           std::size_t before, float * logits, std::size_t n,
                                           const TokenList * listed) {
    try {
        return drawn_token(request, proposal, source, before, logits, n, listed);
    } catch (const NoTokenLeft &) {
        if (std::any_of(logits, logits + n, [](float logit) { return std::isnan(logit); })) {
            throw;
        }
        return std::nullopt;
    }
}

Expectation drawn_expectation(Source source, double probability, std::size_t before) {
    const auto above = std::upper_bound(confidences.begin(), confidences.end(), probability);
    return {source, static_cast<std::size_t>(above - confidences.begin()), before};
}

DrafterPriors drawn_priors() { return drawn_priors(confidence_priors, next_priors, any_prior); }

DrafterPriors drawn_priors(const ByConfidence & rates, const ByNext & next, double any) {
    return DrafterPriors::drawn({rates.begin(), rates.end()}, {next.begin(), next.end()}, any);
}

}  // namespace specllama
