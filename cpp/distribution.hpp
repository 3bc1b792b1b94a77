// Logits -> the probabilities one samples from, after the sampler chain. Knows neither llama.cpp nor Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "constraint.hpp"
#include "random.hpp"
#include "sampler_params.hpp"

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
    // The most probable token.
    int32_t argmax() const;
    // Inverse-CDF sample for u in [0, 1).
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

// sum_x min(p(x), q(x)): how likely rejection sampling accepts a token drawn from q.
double overlap(const Distribution & p, const Distribution & q);

// A function of the caller's that changes a copy of a row of logits, given the tokens generated before its position.
using LogitsProcessor = std::function<void(const int32_t * recent, std::size_t n_recent, std::vector<float> & logits)>;

// llama_cpp.Llama._init_sampler's chain, with what llama-server has besides, in their order and arithmetic: logits
// processor, logit bias, penalties, DRY, grammar, then greedy for temperature 0, else top-n-sigma, top-k, typical,
// top-p, min-p, XTC, temperature.
class SamplerChain {
public:
    explicit SamplerChain(SamplerParams params, LogitsProcessor logits_processor = nullptr,
                          std::shared_ptr<Constraint> constraint = nullptr);

    // The distribution of the next token.
    //   logits [n_vocab]: patched in place by bias and penalties, and restored before the return.
    //   recent [n_recent]: the tokens generated so far in this call, drafted ones included; the penalties see its tail,
    //   the constraint all of it, and DRY the prompt, too.
    // Throws std::runtime_error if no token has a finite logit, or none of those is allowed, and whatever the logits
    // processor throws.
    void apply(float * logits, std::size_t n_vocab, const int32_t * recent, std::size_t n_recent,
               Distribution & out) const;

    const SamplerParams & params() const { return params_; }
    Constraint * constraint() const { return constraint_.get(); }  // null if there is none

private:
    SamplerParams params_;
    LogitsProcessor logits_processor_;
    std::shared_ptr<Constraint> constraint_;
};

}  // namespace specllama
