// The candidates that a constraint allows, as far as they can still be chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/constraint.hpp"
#include "math/logits_scan.hpp"
#include "math/sampler_params.hpp"
#include "math/token_list.hpp"

namespace specllama {

// A constraint, and the tokens that it is asked behind.
struct Allowance {
    Constraint & constraint;
    const int32_t * recent;  // [n_recent]
    std::size_t n_recent;
    const TokenList * listed;  // whose numbers candidates have for ids; null: they have ids

    void forbid(Candidate * candidates, std::size_t count) const;
};

// The allowed ones among n logits, sorted: the best top_k of them (1 at temperature 0, all for top_k <= 0), or fewer
// where top-p and min-p leave the same of those. The constraint is asked about the best candidates first, and about no
// more than that takes.
std::vector<Candidate> select_allowed(const Allowance & allowance, const SamplerParams & params, const float * logits,
                                      std::size_t n);

// out [n]: the logits, -inf for what is not allowed.
void keep_allowed(const Allowance & allowance, const float * logits, std::size_t n, std::vector<float> & out);

}  // namespace specllama
