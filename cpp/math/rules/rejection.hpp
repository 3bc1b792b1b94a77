// Rejection sampling: each draft in turn (Leviathan et al. 2022; Chen et al. 2023).
#pragma once

#include "math/rules/residual.hpp"

namespace specllama {

// Accepts drafts in turn with probability a_i, and corrects the first rejected one from the residual.
Step rejection_step(const Distribution & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                    const Uniforms & uniforms, std::size_t i);
Verdict verify_rejection(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                         const Uniforms & uniforms);

}  // namespace specllama
