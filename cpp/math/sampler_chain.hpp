// The sampler chain turns logits into the probabilities from which a token is drawn. Knows neither llama.cpp nor
// Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "math/constraint.hpp"
#include "math/distribution.hpp"
#include "math/sampler_params.hpp"
#include "math/token_list.hpp"

namespace specllama {

// A function of the caller's that changes a copy of a row of logits, given the tokens generated before its position.
using LogitsProcessor = std::function<void(const int32_t * recent, std::size_t n_recent, std::vector<float> & logits)>;

// The chain of llama_cpp.Llama._init_sampler, and the samplers that llama-server has besides, in their order and
// arithmetic: logits processor, logit bias, penalties, DRY, grammar, then greedy for temperature 0, else top-n-sigma,
// top-k, typical, top-p, min-p, XTC, temperature.
class SamplerChain {
public:
    explicit SamplerChain(SamplerParams params, LogitsProcessor logits_processor = nullptr,
                          std::shared_ptr<Constraint> constraint = nullptr);

    // Computes the distribution of the next token.
    //   logits [n_vocab]: patched in place by bias and penalties, and restored before the return.
    //   recent [n_recent]: the tokens generated so far in this call, drafted ones included. The penalties see the last
    //   of them, the constraint sees all, and DRY sees the prompt before them, too.
    // Throws NoTokenLeft if no token has a finite logit, or if the constraint allows no token that has one, and
    // whatever the logits processor throws.
    void apply(float * logits, std::size_t n_vocab, const int32_t * recent, std::size_t n_recent,
               Distribution & out) const;

    // Computes the distribution over the tokens of a list, as if there were no other tokens. No logits processor is
    // called.
    //   logits [n]: the logits of the listed tokens, as TokenList::gather returns them.
    void apply(const TokenList & listed, float * logits, std::size_t n, const int32_t * recent, std::size_t n_recent,
               Distribution & out) const;

    const SamplerParams & params() const { return params_; }
    Constraint * constraint() const { return constraint_.get(); }  // null if there is none

private:
    void apply_to(const TokenList * listed, float * logits, std::size_t n, const int32_t * recent, std::size_t n_recent,
                  Distribution & out) const;

    SamplerParams params_;
    LogitsProcessor logits_processor_;
    std::shared_ptr<Constraint> constraint_;
};

}  // namespace specllama
