// The drafts of a round: a chain of tokens, and what is known of each token before its verification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "drafters/source.hpp"
#include "math/distribution.hpp"
#include "pacing/acceptance_rates.hpp"

namespace specllama {

struct DraftToken {
    int32_t token = 0;
    Expectation expected;  // its drafter and its class
    // The distribution that the token was drawn from. Empty: the token was not drawn; it depends only on the tokens
    // before it.
    Distribution q;
    bool forced = false;      // no other token can come in its place
    std::size_t choices = 0;  // how many tokens a draft model chose among
};

// d_1..d_gamma with q_1..q_gamma. A drawn token is never taken back.
struct Proposal {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
    std::vector<Expectation> expected;
    std::vector<std::size_t> choices;

    void append(DraftToken next) {
        q.push_back(next.q.size() > 0 ? std::move(next.q) : Distribution{{next.token}, {1.0}});
        expected.push_back(next.expected);
        choices.push_back(next.choices);
        tokens.push_back(next.token);
    }
};

}  // namespace specllama
