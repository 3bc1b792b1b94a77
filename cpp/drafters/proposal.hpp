// What a round drafts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "drafters/source.hpp"
#include "math/distribution.hpp"

namespace specllama {

// d_1..d_gamma, the distributions q_1..q_gamma that they were drawn from, and where each came from. They are appended
// together, so that a proposal is whole at any moment: what was drawn is never taken back (design section 8).
struct Proposal {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
    std::vector<Source> sources;

    void append(int32_t token, Distribution token_q, Source source) {
        q.push_back(std::move(token_q));
        sources.push_back(source);
        tokens.push_back(token);
    }
    // A token that was not drawn: a function of history and of the tokens before it.
    void append_guess(int32_t token, Source source) { append(token, {{token}, {1.0}}, source); }

    // Leaves tokens out, from number `count` on.
    void cut(std::size_t count) {
        tokens.resize(count);
        q.resize(count);
        sources.resize(count);
    }

    void clear() {
        tokens.clear();
        q.clear();
        sources.clear();
    }
};

}  // namespace specllama
