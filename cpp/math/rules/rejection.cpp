// Rejection sampling.
#include "math/rules/rejection.hpp"

#include "math/rules/table.hpp"

namespace specllama {

namespace {

class Rejection final : public Rule {
public:
    Rejection() : Rule({"rejection", "each draft in turn, with probability min(1, p/q)", false, true}) {}

    int32_t draw(const Distribution & q, const RoundNoise & noise, std::size_t i) const override {
        return drawn_by_uniform(q, noise, i);
    }
    Verdict decide(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                   const RoundNoise & noise) const override {
        return verify_rejection(p, q, draft, uniforms_of(noise, draft.size()));
    }
    Step decide_step(const Distribution & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                     const RoundNoise & noise, std::size_t i) const override {
        return rejection_step(p, q, draft, uniforms_of(noise, draft.size()), i);
    }
};

}  // namespace

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

const Rule & rejection_rule() {
    static const Rejection rule;
    return rule;
}

}  // namespace specllama
