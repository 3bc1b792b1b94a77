// What rules of rejection share: what is left of p without q, how likely a draft stays, the uniforms of a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/distribution.hpp"
#include "math/rules/rule.hpp"

namespace specllama {

// norm(max(0, weight * p - q)), matched by token id. Where it is empty (p <= q / weight everywhere, which a rejection
// can only meet by rounding) it is p.
Distribution residual(const Distribution & p, const Distribution & q, double weight);

// sum_x max(0, weight * p(x) - q(x))
double residual_mass(const Distribution & p, const Distribution & q, double weight);

// p / q, where a draft of probability 0 (it cannot be drawn) is never accepted.
inline double acceptance_ratio(double p, double q) { return q > 0.0 ? p / q : 0.0; }

// a_i = min(1, p_i(d_i) / q_i(d_i)) (Leviathan et al. 2022, algorithm 1; Chen et al. 2023, algorithm 2).
double rejection_acceptance(const Distribution & p, const Distribution & q, int32_t draft);

// The uniforms that one round consumes.
struct Uniforms {
    std::vector<double> accept;  // [gamma], one for each draft
    double next;                 // selects the token after the accepted ones
};
Uniforms uniforms_of(const RoundNoise & noise, std::size_t gamma);

// A draft drawn from q by a uniform of its own.
int32_t drawn_by_uniform(const Distribution & q, const RoundNoise & noise, std::size_t i);

}  // namespace specllama
