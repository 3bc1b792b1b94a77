// The acceptance rates that are assumed for each drafter's tokens before any token was verified.
#pragma once

#include <vector>

#include "drafters/source.hpp"
#include "pacing/acceptance_rates.hpp"

namespace specllama {

// Each drafter's file defines its own function.
#define SPECLLAMA_PRIORS(name, origin, summary) DrafterPriors name##_priors();
SPECLLAMA_DRAFTERS(SPECLLAMA_PRIORS)
#undef SPECLLAMA_PRIORS

// The priors of all drafters, by Source.
inline std::vector<DrafterPriors> all_priors() {
#define SPECLLAMA_PRIORS(name, origin, summary) name##_priors(),
    return {SPECLLAMA_DRAFTERS(SPECLLAMA_PRIORS)};
#undef SPECLLAMA_PRIORS
}

}  // namespace specllama
