// What may follow the text so far: a grammar. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "math/logits_scan.hpp"

namespace specllama {

class Constraint {
public:
    virtual ~Constraint() = default;
    Constraint() = default;
    Constraint(const Constraint &) = delete;
    Constraint & operator=(const Constraint &) = delete;

    // Sets the logit of every candidate to -inf that may not come after `recent` [n_recent]: the tokens generated so
    // far in this call, drafted ones included. A token there that was not allowed itself (a guess, or a caller's own)
    // is passed over. Calls may go back and forth: only `recent` counts.
    virtual void forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) = 0;

    // Whether all tokens may come after `recent`, ends of the text included: nobody needs to ask about each of them
    // then.
    virtual bool allows_all(const int32_t * /*recent*/, std::size_t /*n_recent*/) { return false; }

    // Called now and then during long work, with the seconds of it since the last time. What it throws ends the work.
    using Heed = std::function<void(double)>;
    // Who is asked from now on; null: nobody.
    virtual void ask(const Heed * /*heed*/) {}

    // Where only one text may come next, and no end, a token with as much of it as a token can have.
    struct Forced {
        int32_t token;
        bool alone;  // no other token may come next; else others begin that text
    };
    virtual std::optional<Forced> forced(const int32_t *, std::size_t) { return std::nullopt; }
};

}  // namespace specllama
