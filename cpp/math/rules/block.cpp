// Block verification.
#include "math/rules/block.hpp"

#include <algorithm>

#include "math/rules/table.hpp"

namespace specllama {

namespace {

class Block final : public Rule {
public:
    Block() : Rule({"block", "the whole draft at once; accepts at least as much as rejection", false, false}) {}

    int32_t draw(const Distribution & q, const RoundNoise & noise, std::size_t i) const override {
        return drawn_by_uniform(q, noise, i);
    }
    Verdict decide(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                   const RoundNoise & noise) const override {
        return verify_block(p, q, draft, uniforms_of(noise, draft.size()));
    }
};

}  // namespace

BlockAcceptance block_acceptance(const TargetAt & p, const std::vector<Distribution> & q,
                                 const std::vector<int32_t> & draft) {
    const std::size_t gamma = draft.size();
    BlockAcceptance result;
    result.w.assign(gamma + 1, 0.0);
    result.w[0] = 1.0;
    result.h.assign(gamma, 0.0);
    for (std::size_t i = 1; i <= gamma; ++i) {
        const double ratio = acceptance_ratio(p(i - 1).of(draft[i - 1]), q[i - 1].of(draft[i - 1]));
        const double w = std::min(1.0, result.w[i - 1] * ratio);
        result.w[i] = w;
        if (w <= 0.0) {
            break;  // no token after an impossible one is ever accepted
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

const Rule & block_rule() {
    static const Block rule;
    return rule;
}

}  // namespace specllama
