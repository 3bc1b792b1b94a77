// Operations on distributions: lookup, sampling, overlap.
#include "math/distribution.hpp"

#include <algorithm>

namespace specllama {

double Distribution::of(int32_t token) const {
    if (token < 0) {
        return 0.0;
    }
    if (dense()) {
        return static_cast<std::size_t>(token) < probs.size() ? probs[token] : 0.0;
    }
    const auto found = std::find(ids.begin(), ids.end(), token);
    return found == ids.end() ? 0.0 : probs[found - ids.begin()];
}

int32_t Distribution::argmax() const {
    if (!dense()) {
        return ids.front();
    }
    return static_cast<int32_t>(std::max_element(probs.begin(), probs.end()) - probs.begin());
}

int32_t Distribution::sample(double u) const {
    double cumulative = 0.0;
    std::size_t last_possible = 0;
    for (std::size_t i = 0; i < probs.size(); ++i) {
        if (probs[i] <= 0.0) {
            continue;
        }
        cumulative += probs[i];
        last_possible = i;
        if (u < cumulative) {
            break;
        }
    }
    return id(last_possible);  // the sum never exceeds u if rounding left the whole sum just below u
}

int32_t Distribution::gumbel_argmax(const Noise & noise) const {
    // argmax log p + G = argmin E / p with E = exp(-G) exponential. The best score so far is an upper limit of the E
    // with which another token can still win. The generator yields no E below smallest_exponential, nor one below 1 -
    // uniform (-log(u) >= 1 - u), so most tokens cost a multiplication and no logarithm.
    int32_t best = argmax();
    double best_score = noise.exponential(best) / of(best);
    for (std::size_t i = 0; i < probs.size(); ++i) {
        const double limit = best_score * probs[i];
        if (limit < Noise::smallest_exponential) {
            if (!dense()) {
                break;  // probabilities descend: no later token can win either
            }
            continue;
        }
        const int32_t token = id(i);
        const double u = noise.uniform(token);
        if (1.0 - u > limit) {
            continue;
        }
        const double score = -std::log(u) / probs[i];
        if (score < best_score) {
            best_score = score;
            best = token;
        }
    }
    return best;
}

ProbabilityOf::ProbabilityOf(const Distribution & distribution) : distribution_(distribution) {
    if (distribution.dense()) {
        return;
    }
    by_id_.reserve(distribution.size());
    for (std::size_t i = 0; i < distribution.size(); ++i) {
        by_id_.emplace_back(distribution.ids[i], distribution.probs[i]);
    }
    std::sort(by_id_.begin(), by_id_.end());
}

double ProbabilityOf::operator()(int32_t token) const {
    if (distribution_.dense()) {
        return distribution_.of(token);
    }
    const auto found = std::lower_bound(by_id_.begin(), by_id_.end(), token,
                                        [](const auto & entry, int32_t wanted) { return entry.first < wanted; });
    return found != by_id_.end() && found->first == token ? found->second : 0.0;
}

double overlap(const Distribution & p, const Distribution & q) {
    double sum = 0.0;
    for_each_pair(p, q, [&sum](std::size_t, double p_x, double q_x) { sum += std::min(p_x, q_x); });
    return sum;
}

}  // namespace specllama
