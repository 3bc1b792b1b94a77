// A constraint that gets the allowed tokens of a position as one mask of the whole vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "math/constraint.hpp"

namespace specllama {

class MaskConstraint final : public Constraint {
public:
    struct Mask {
        std::vector<std::uint32_t> allowed;  // a bit for each token, the lowest first; a missing bit forbids its token
        bool may_end = false;                // whether a token that ends the text may come next
        std::int32_t guess = -1;             // a token that begins the only text that may come next; -1 if several may
        bool is_free = false;                // all tokens may come next; the other fields mean nothing then
    };
    // Returns the mask after `recent` [n_recent], the tokens generated so far. `recent` may become longer or shorter
    // from call to call.
    using Source = std::function<Mask(const std::int32_t * recent, std::size_t n_recent)>;
    // Does what forbid() does, for a few candidates. Where masks take long, this is faster.
    using Test =
        std::function<void(const std::int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t)>;

    // ends: the tokens that end a text. Where a mask says `may_end`, all of them are allowed, whatever its bits say.
    // test: null, if masks take no time. probes: for `test`, tokens that begin differently: if two of them may come
    // next, the next token is not forced.
    MaskConstraint(std::vector<std::int32_t> ends, Source source, Test test = nullptr,
                   std::vector<std::int32_t> probes = {});

    void forbid(const std::int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) override;
    bool allows_all(const std::int32_t * recent, std::size_t n_recent) override;
    std::optional<Forced> forced(const std::int32_t * recent, std::size_t n_recent) override;

private:
    struct Place {
        std::optional<Mask> mask;
        std::size_t num_tested = 0;  // the number of candidates that were tested without a mask
    };

    Place & at(const std::int32_t * recent, std::size_t n_recent);
    const Mask & after(const std::int32_t * recent, std::size_t n_recent);
    bool has_choice(const std::int32_t * recent, std::size_t n_recent);
    void set_ends(Mask & mask) const;

    std::vector<std::int32_t> ends_;
    Source source_;
    Test test_;
    std::vector<std::int32_t> probes_;
    std::vector<std::int32_t> steps_;  // the text whose positions places_ describes
    // By the number of tokens before the position. Places are kept because the draft and the target both ask about
    // them.
    std::map<std::size_t, Place> places_;
};

}  // namespace specllama
