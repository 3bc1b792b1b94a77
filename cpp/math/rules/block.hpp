// Block verification judges the whole draft at once (Sun et al., "Block Verification Accelerates Speculative Decoding",
// ICLR 2025, arXiv 2403.10444, algorithm 2).
#pragma once

#include "math/rules/residual.hpp"

namespace specllama {

struct BlockAcceptance {
    std::vector<double> w;  // [gamma+1]: w_0 = 1, w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i))
    std::vector<double> h;  // [gamma]: h_i, i = 1..gamma, the probability with which length i passes its test
};
BlockAcceptance block_acceptance(const TargetAt & p, const std::vector<Distribution> & q,
                                 const std::vector<int32_t> & draft);

// Accepts the longest prefix of the draft whose test passes. In expectation, it accepts at least as many tokens as
// `rejection`.
Verdict verify_block(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                     const Uniforms & uniforms);

}  // namespace specllama
