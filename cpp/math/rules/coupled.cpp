// Coupled sampling.
#include "math/rules/coupled.hpp"

#include "math/rules/table.hpp"

namespace specllama {

namespace {

int32_t shared_sample(const Distribution & distribution, std::uint64_t seed, std::uint64_t position) {
    return distribution.gumbel_argmax(Noise(seed, Stream::gumbel, position));
}

class Coupled final : public Rule {
public:
    Coupled() : Rule({"coupled", "while it is the target's own choice; a seed means one text", true, true}) {}

    int32_t draw(const Distribution & q, const RoundNoise & noise, std::size_t i) const override {
        return shared_sample(q, noise.seed, noise.position + i);
    }
    Verdict decide(const TargetAt & p, const std::vector<Distribution> &, const std::vector<int32_t> & draft,
                   const RoundNoise & noise) const override {
        return verify_coupled(p, draft, noise.seed, noise.position);
    }
    Step decide_step(const Distribution & p, const std::vector<Distribution> &, const std::vector<int32_t> & draft,
                     const RoundNoise & noise, std::size_t i) const override {
        return coupled_step(p, draft, noise.seed, noise.position, i);
    }
};

}  // namespace

Step coupled_step(const Distribution & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                  std::uint64_t position, std::size_t i) {
    const int32_t token = shared_sample(p, seed, position + i);
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

const Rule & coupled_rule() {
    static const Coupled rule;
    return rule;
}

}  // namespace specllama
