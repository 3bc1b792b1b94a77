// A probability distribution over tokens, and how tokens are drawn from it. Knows neither llama.cpp nor Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "math/random.hpp"

namespace specllama {

// A probability distribution over token ids. Sparse: `ids[i]` has `probs[i]`, in descending order. Dense (no
// truncation at all): `ids` is empty and `probs[id]` belongs to id.
struct Distribution {
    std::vector<int32_t> ids;
    std::vector<double> probs;

    bool dense() const { return ids.empty(); }
    std::size_t size() const { return probs.size(); }
    int32_t id(std::size_t i) const { return dense() ? static_cast<int32_t>(i) : ids[i]; }

    // The probability of one token; 0 for an id that is not there.
    double of(int32_t token) const;
    int32_t argmax() const;
    // The token that inverse-CDF sampling draws for u in [0, 1).
    int32_t sample(double u) const;
    // argmax_x log p(x) + G(x), with G the noise of a position (Gumbel-max trick): it has distribution p.
    int32_t gumbel_argmax(const Noise & noise) const;
};

// Random access to a distribution's probabilities by token id: O(1) dense, O(log n) sparse.
class ProbabilityOf {
public:
    explicit ProbabilityOf(const Distribution & distribution);
    double operator()(int32_t token) const;

private:
    const Distribution & distribution_;
    std::vector<std::pair<int32_t, double>> by_id_;
};

// Calls visit(i, p_i, q(x_i)) for every token x_i of p, in p's order.
template <typename Visit>
void for_each_pair(const Distribution & p, const Distribution & q, Visit visit) {
    if (p.dense() && q.dense()) {
        const std::size_t common = std::min(p.size(), q.size());
        for (std::size_t i = 0; i < common; ++i) {
            visit(i, p.probs[i], q.probs[i]);
        }
        for (std::size_t i = common; i < p.size(); ++i) {
            visit(i, p.probs[i], 0.0);
        }
        return;
    }
    const ProbabilityOf q_of(q);
    for (std::size_t i = 0; i < p.size(); ++i) {
        visit(i, p.probs[i], q_of(p.id(i)));
    }
}

// sum_x min(p(x), q(x)): the probability with which rejection sampling accepts a token drawn from q.
double overlap(const Distribution & p, const Distribution & q);

}  // namespace specllama
