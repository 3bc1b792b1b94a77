// Selects the candidates that a constraint allows and that can still be chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/constraint.hpp"
#include "math/logits_scan.hpp"
#include "math/sampler_params.hpp"
#include "math/token_list.hpp"

namespace specllama {

// A constraint, and the text that the allowed candidates may follow.
struct Allowance {
    Constraint & constraint;
    const int32_t * recent;  // [n_recent]
    std::size_t n_recent;
    const TokenList * listed;  // if not null, a candidate's `id` is its number in this list; else it is a token id

    void forbid(Candidate * candidates, std::size_t count) const;
};

// Returns the allowed candidates among n logits, best first: the best top_k of them (1 at temperature 0, all for
// top_k <= 0). Candidates that top-p and min-p would remove anyway may be left out. The constraint is asked about the
// best candidates first, and about no more than necessary.
std::vector<Candidate> select_allowed(const Allowance & allowance, const SamplerParams & params, const float * logits,
                                      std::size_t n);

// Copies the logits to out [n], with -inf for each token that is not allowed.
void keep_allowed(const Allowance & allowance, const float * logits, std::size_t n, std::vector<float> & out);

}  // namespace specllama
