// Acceptance rules.
#include "acceptance_rules.hpp"

#include <algorithm>
#include <stdexcept>

namespace specllama {

namespace {

// sum_x max(0, weight * p(x) - q(x))
double residual_mass(const Distribution & p, const Distribution & q, double weight) {
    double mass = 0.0;
    for_each_pair(p, q, [&](std::size_t, double p_x, double q_x) { mass += std::max(0.0, weight * p_x - q_x); });
    return mass;
}

// p / q, where a draft of probability 0 (it cannot be drawn) is never accepted.
double ratio(double p, double q) { return q > 0.0 ? p / q : 0.0; }

}  // namespace

Rule rule_from_name(const std::string & name) {
    if (name == "rejection") {
        return Rule::rejection;
    }
    if (name == "block") {
        return Rule::block;
    }
    if (name == "coupled") {
        return Rule::coupled;
    }
    throw std::invalid_argument("unknown rule '" + name + "': use 'rejection', 'block' or 'coupled'");
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
    return std::min(1.0, ratio(p.of(draft), q.of(draft)));
}

Step rejection_step(const Distribution & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                    const Uniforms & uniforms, std::size_t i) {
    if (i == draft.size()) {
        return {false, p.sample(uniforms.next)};
    }
    if (uniforms.accept[i] < rejection_acceptance(p, q[i], draft[i])) {
        return {true, draft[i]};
    }
    return {false, residual(p, q[i], 1.0).sample(uniforms.next)};
}

Verdict verify_rejection(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                         const Uniforms & uniforms) {
    for (std::size_t i = 0;; ++i) {
        const Step step = rejection_step(p(i), q, draft, uniforms, i);
        if (!step.accepted) {
            return {i, step.token};
        }
    }
}

BlockAcceptance block_acceptance(const TargetAt & p, const std::vector<Distribution> & q,
                                 const std::vector<int32_t> & draft) {
    const std::size_t gamma = draft.size();
    BlockAcceptance result;
    result.w.assign(gamma + 1, 0.0);
    result.w[0] = 1.0;
    result.h.assign(gamma, 0.0);
    for (std::size_t i = 1; i <= gamma; ++i) {
        const double w = std::min(1.0, result.w[i - 1] * ratio(p(i - 1).of(draft[i - 1]), q[i - 1].of(draft[i - 1])));
        result.w[i] = w;
        if (w <= 0.0) {
            break;  // what comes behind an impossible token is never accepted
        }
        if (i == gamma) {
            result.h[i - 1] = w;
        } else {
            const double mass = residual_mass(p(i), q[i], w);
            const double denominator = mass + 1.0 - w;
            result.h[i - 1] = denominator > 0.0 ? mass / denominator : 0.0;
        }
    }
    return result;
}

Verdict verify_block(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                     const Uniforms & uniforms) {
    const std::size_t gamma = draft.size();
    const BlockAcceptance acceptance = block_acceptance(p, q, draft);
    std::size_t accepted = gamma;
    while (accepted > 0 && uniforms.accept[accepted - 1] >= acceptance.h[accepted - 1]) {
        --accepted;
    }
    if (accepted == gamma) {
        return {gamma, p(gamma).sample(uniforms.next)};
    }
    return {accepted, residual(p(accepted), q[accepted], acceptance.w[accepted]).sample(uniforms.next)};
}

Step coupled_step(const Distribution & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                  std::uint64_t position, std::size_t i) {
    const int32_t token = p.gumbel_argmax(Noise(seed, Stream::gumbel, position + i));
    return {i < draft.size() && token == draft[i], token};
}

Verdict verify_coupled(const TargetAt & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                       std::uint64_t position) {
    for (std::size_t i = 0;; ++i) {
        const Step step = coupled_step(p(i), draft, seed, position, i);
        if (!step.accepted) {
            return {i, step.token};
        }
    }
}

}  // namespace specllama
