// p_1..p_{gamma+1} of a round, made when they are asked for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "loop/target.hpp"
#include "math/sampler_chain.hpp"

namespace specllama {

class TargetDistributions {
public:
    // A generation whose logits go through this chain.
    void begin(SamplerChain chain) { chain_.emplace(std::move(chain)); }

    // A round with so many rows of logits.
    void begin_round(std::size_t count) {
        num_known_ = 0;
        p_.resize(std::max(p_.size(), count));
    }

    // That of row i of the batch, and of all before it. The chain sees the tokens of `sequence` from the prompt's end
    // on; the round's first row comes after `before` of its tokens.
    const Distribution & at(std::size_t i, TargetBatch & batch, const std::vector<int32_t> & sequence,
                            std::size_t prompt_size, std::size_t before) {
        for (; num_known_ <= i; ++num_known_) {
            chain_->apply(batch.row(num_known_), batch.decoder().n_vocab(), sequence.data() + prompt_size,
                          before - prompt_size + num_known_, p_[num_known_]);
        }
        return p_[i];
    }

    // Those that were asked for in this round; behind them, others.
    const std::vector<Distribution> & all() const { return p_; }
    const Distribution & operator[](std::size_t i) const { return p_[i]; }

private:
    std::optional<SamplerChain> chain_;
    std::vector<Distribution> p_;  // the first num_known_ are those of this round
    std::size_t num_known_ = 0;
};

}  // namespace specllama
