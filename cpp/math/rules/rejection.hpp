// Rejection sampling judges one drafted token after the other (Leviathan et al. 2022; Chen et al. 2023).
#pragma once

#include "math/rules/residual.hpp"

namespace specllama {

// Accepts drafted token i with the probability a_i (see rejection_acceptance), one after the other. In place of the
// first rejected token, a token is drawn from the residual.
Step rejection_step(const Distribution & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                    const Uniforms & uniforms, std::size_t i);
Verdict verify_rejection(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                         const Uniforms & uniforms);

}  // namespace specllama
