// Coupled sampling: draft and target share the noise of a position (Daliri, Musco, Suresh, arXiv 2408.07978).
#pragma once

#include "math/rules/rule.hpp"

namespace specllama {

// At each position the target samples with the shared noise; drafted tokens are accepted as long as they equal these
// samples. `position` is the index of d_1 in the history.
Step coupled_step(const Distribution & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                  std::uint64_t position, std::size_t i);
Verdict verify_coupled(const TargetAt & p, const std::vector<int32_t> & draft, std::uint64_t seed,
                       std::uint64_t position);

}  // namespace specllama
