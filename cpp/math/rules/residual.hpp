// What the rejection rule and the block rule share: the residual of p and q, how likely a draft is accepted, and the
// uniforms of a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/distribution.hpp"
#include "math/rules/rule.hpp"

namespace specllama {

// norm(max(0, weight * p - q)), matched by token id. If nothing is left (p <= q / weight everywhere, which happens
// after a rejection by rounding only), the result is p.
Distribution residual(const Distribution & p, const Distribution & q, double weight);

// sum_x max(0, weight * p(x) - q(x))
double residual_mass(const Distribution & p, const Distribution & q, double weight);

// p / q; 0 for q = 0, so that a token which cannot have been drawn from q is never accepted.
inline double acceptance_ratio(double p, double q) { return q > 0.0 ? p / q : 0.0; }

// a_i = min(1, p_i(d_i) / q_i(d_i)) (Leviathan et al. 2022, algorithm 1; Chen et al. 2023, algorithm 2).
double rejection_acceptance(const Distribution & p, const Distribution & q, int32_t draft);

// The uniforms that one round consumes.
struct Uniforms {
    std::vector<double> accept;  // [gamma], one for each drafted token
    double next;                 // selects the token after the accepted ones
};
Uniforms uniforms_of(const RoundNoise & noise, std::size_t gamma);

// Draws a draft token from q at drafted position i, with a uniform that no other draw uses.
int32_t drawn_by_uniform(const Distribution & q, const RoundNoise & noise, std::size_t i);

}  // namespace specllama
