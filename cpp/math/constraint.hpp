// A constraint says which tokens may follow the text so far, as a grammar does. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "math/logits_scan.hpp"

namespace specllama {

class Constraint {
public:
    virtual ~Constraint() = default;
    Constraint() = default;
    Constraint(const Constraint &) = delete;
    Constraint & operator=(const Constraint &) = delete;

    // Sets the logit of every candidate that may not come after `recent` to -inf. `recent` [n_recent]: the tokens
    // generated so far in this call, drafted ones included. A token of `recent` that was not allowed itself (one that
    // was guessed or given by a caller) is passed over. `recent` may become longer or shorter from call to call, in any
    // order.
    virtual void forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) = 0;

    // Whether all tokens may come after `recent`, also those that end the text. Then forbid() need not be called.
    virtual bool allows_all(const int32_t * /*recent*/, std::size_t /*n_recent*/) { return false; }

    // If only one text may come next, and the generated text may not end here, returns the token that covers the most
    // of that text; else nothing.
    struct Forced {
        int32_t token;
        bool is_unique;  // no other token may come next; if false, there are other tokens that begin the same text
    };
    virtual std::optional<Forced> forced(const int32_t *, std::size_t) { return std::nullopt; }
};

}  // namespace specllama
