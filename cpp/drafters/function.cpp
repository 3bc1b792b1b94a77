// Drafts the tokens that a caller's function returns.
#include "drafters/function.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include "drafters/table.hpp"

namespace specllama {

namespace {

std::string as_text(double value) {
    std::ostringstream text;
    text << value;
    return text.str();
}

constexpr double sum_tolerance = 1e-3;  // how far the sum of q may be from 1: 32-bit probabilities are rounded

std::string named(int32_t token, std::size_t i) {
    return "the drafter gave token " + std::to_string(token) + " at position " + std::to_string(i);
}

void require_token(const DraftRequest & request, const Distribution & q, int32_t token, std::size_t i) {
    if (token < 0 || static_cast<std::size_t>(token) >= request.target.n_vocab() || !(q.of(token) > 0.0)) {
        throw std::invalid_argument(named(token, i) + ": it must be one of the target's " +
                                    std::to_string(request.target.n_vocab()) + ", with a probability above 0 in its q");
    }
}

// Throws unless q is a distribution whose sum is 1 within the tolerance. Then scales q so that the sum is 1.
void normalise(Distribution & q, int32_t token, std::size_t i) {
    double sum = 0.0;
    for (const double p : q.probs) {
        if (!std::isfinite(p) || p < 0.0) {
            throw std::invalid_argument(named(token, i) + " with a q that has the value " + as_text(p) +
                                        ": probabilities must be finite and 0 or more; return those that the token "
                                        "was drawn with, or the tokens alone");
        }
        sum += p;
    }
    if (std::abs(sum - 1.0) > sum_tolerance) {
        throw std::invalid_argument(named(token, i) + " with a q that sums to " + as_text(sum) +
                                    ": it must sum to 1 within " + as_text(sum_tolerance) +
                                    "; return the probabilities that the token was drawn with, or the tokens alone");
    }
    for (double & p : q.probs) {
        p /= sum;
    }
}

void require_usable(const DraftRequest & request, DraftedByFunction & offer) {
    const std::size_t count = offer.tokens.size();
    if (count > request.gamma || offer.q.size() != count) {
        throw std::invalid_argument("the drafter gave " + std::to_string(count) + " tokens and " +
                                    std::to_string(offer.q.size()) + " distributions: at most " +
                                    std::to_string(request.gamma) + " of each were asked for");
    }
    for (std::size_t i = 0; i < count; ++i) {
        normalise(offer.q[i], offer.tokens[i], i);
        require_token(request, offer.q[i], offer.tokens[i], i);
    }
}

}  // namespace

std::vector<DraftToken> FunctionDrafter::offer(const DraftRequest & request, const Proposal & proposal, std::size_t) {
    std::vector<DraftToken> offer;
    if (!proposal.tokens.empty()) {
        return offer;
    }
    DraftedByFunction drafted = function_(request);
    require_usable(request, drafted);
    for (std::size_t i = 0; i < drafted.tokens.size(); ++i) {
        offer.push_back({drafted.tokens[i], {Source::function, 0, 0}, std::move(drafted.q[i])});
        if (request.target.is_eog(drafted.tokens[i])) {
            break;
        }
    }
    return offer;
}

DrafterPriors function_priors() { return DrafterPriors::apart({0.5}); }

}  // namespace specllama
