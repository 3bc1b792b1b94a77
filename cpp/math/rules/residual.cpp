// What the rejection rule and the block rule share.
#include "math/rules/residual.hpp"

#include <algorithm>

namespace specllama {

double residual_mass(const Distribution & p, const Distribution & q, double weight) {
    double mass = 0.0;
    for_each_pair(p, q, [&](std::size_t, double p_x, double q_x) { mass += std::max(0.0, weight * p_x - q_x); });
    return mass;
}

Distribution residual(const Distribution & p, const Distribution & q, double weight) {
    Distribution out;
    double mass = 0.0;
    for_each_pair(p, q, [&](std::size_t i, double p_x, double q_x) {
        const double left = std::max(0.0, weight * p_x - q_x);
        if (p.dense()) {
            out.probs.push_back(left);
        } else if (left > 0.0) {
            out.ids.push_back(p.ids[i]);
            out.probs.push_back(left);
        }
        mass += left;
    });
    if (mass <= 0.0) {
        return p;
    }
    for (double & probability : out.probs) {
        probability /= mass;
    }
    return out;
}

double rejection_acceptance(const Distribution & p, const Distribution & q, int32_t draft) {
    return std::min(1.0, acceptance_ratio(p.of(draft), q.of(draft)));
}

Uniforms uniforms_of(const RoundNoise & noise, std::size_t gamma) {
    const Noise accept(noise.seed, Stream::accept, noise.round);
    Uniforms uniforms{{}, Noise(noise.seed, Stream::next, noise.round).uniform(0)};
    for (std::size_t i = 0; i < gamma; ++i) {
        uniforms.accept.push_back(accept.uniform(i));
    }
    return uniforms;
}

int32_t drawn_by_uniform(const Distribution & q, const RoundNoise & noise, std::size_t i) {
    return q.sample(Noise(noise.seed, Stream::draft, noise.round).uniform(i));
}

}  // namespace specllama
