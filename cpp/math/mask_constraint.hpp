// A constraint that is told of all tokens at once which may come next.
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
        std::vector<std::uint32_t> allowed;  // a bit for each token, the lowest first; what is not there is forbidden
        bool may_end = false;                // whether a token that ends the text may come next
        std::int32_t guess = -1;             // what begins the only text that may come next; -1 where there are several
        bool is_free = false;                // all tokens may come next: the rest says nothing
    };
    // What may come after the tokens generated so far [n_recent]. Calls may go back and forth.
    using Source = std::function<Mask(const std::int32_t * recent, std::size_t n_recent)>;

    // ends: the tokens that end a text. All of them may where one may, whatever the masks say of them.
    MaskConstraint(std::vector<std::int32_t> ends, Source source);

    void forbid(const std::int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) override;
    bool allows_all(const std::int32_t * recent, std::size_t n_recent) override;
    std::optional<Forced> forced(const std::int32_t * recent, std::size_t n_recent) override;

private:
    const Mask & after(const std::int32_t * recent, std::size_t n_recent);
    void set_ends(Mask & mask) const;

    std::vector<std::int32_t> ends_;
    Source source_;
    std::vector<std::int32_t> steps_;    // the way on which was asked last, as far as it is known
    std::map<std::size_t, Mask> masks_;  // by how many steps are before them: draft and target ask for the same
};

}  // namespace specllama
