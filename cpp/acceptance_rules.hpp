// Acceptance rules: pure functions of (p, q, draft, randomness). They know neither llama.cpp nor Python.
//
// p_1..p_{gamma+1} are the target's distributions at the drafted positions and after them, q_1..q_gamma those that
// the drafts d_1..d_gamma were drawn from. Every rule leaves the target's distribution exactly as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distribution.hpp"

namespace specllama {

enum class Rule { rejection, block, coupled };

// "rejection", "block" or "coupled"; throws std::invalid_argument for anything else.
Rule rule_from_name(const std::string & name);

// p(i), i = 0..gamma: computed when a rule first asks for it, because a rule that stops early needs no more.
using TargetAt = std::function<const Distribution &(std::size_t)>;

struct Verdict {
    std::size_t num_accepted;  // drafts 1..num_accepted stay
    int32_t next;              // the token after them: a correction, or a bonus if all were accepted
};

// The uniforms that one call of `rejection` or `block` consumes.
struct Uniforms {
    std::vector<double> accept;  // [gamma], one for each draft
    double next;                 // selects the token after the accepted ones
};

// norm(max(0, weight * p - q)), matched by token id. Where it is empty (p <= q / weight everywhere, which a rejection
// can only meet by rounding) it is p.
Distribution residual(const Distribution & p, const Distribution & q, double weight);

// a_i = min(1, p_i(d_i) / q_i(d_i)) (Leviathan et al. 2022, algorithm 1; Chen et al. 2023, algorithm 2).
double rejection_acceptance(const Distribution & p, const Distribution & q, int32_t draft);

// What becomes of one position, i = 0..gamma, if all drafts before it were accepted.
struct Step {
    bool accepted;  // the draft stays
    int32_t token;  // which comes there
};

// Accepts drafts in turn with probability a_i, and corrects the first rejected one from the residual.
Step rejection_step(const Distribution & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                    const Uniforms & uniforms, std::size_t i);
Verdict verify_rejection(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                         const Uniforms & uniforms);

// Sun et al., "Block Verification Accelerates Speculative Decoding", ICLR 2025 (arXiv 2403.10444), algorithm 2.
struct BlockAcceptance {
    std::vector<double> w;  // [gamma+1]: w_0 = 1, w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i))
    std::vector<double> h;  // [gamma]: h_i, i = 1..gamma, the probability with which length i passes its test
};
BlockAcceptance block_acceptance(const TargetAt & p, const std::vector<Distribution> & q,
                                 const std::vector<int32_t> & draft);

// Accepts the longest prefix whose test passes: at least as many tokens in expectation as `rejection`.
Verdict verify_block(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                     const Uniforms & uniforms);

// Daliri, Musco, Suresh, arXiv 2408.07978: the target's own sample under the shared noise of each position, accepted
// while it equals the draft. `position` is the index of d_1 in the history.
Step coupled_step(const Distribution & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                  std::uint64_t position, std::size_t i);
Verdict verify_coupled(const TargetAt & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                       std::uint64_t position);

}  // namespace specllama
