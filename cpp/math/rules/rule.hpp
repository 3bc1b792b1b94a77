// What an acceptance rule is: it decides which drafted tokens stay, and which token comes after them.
//
// p_1..p_{gamma+1} are the target's distributions at the drafted positions and after them. The drafted tokens (drafts)
// d_1..d_gamma were drawn from the distributions q_1..q_gamma. Every rule leaves the target's distribution exactly as
// it is. Rules are functions of (p, q, draft, noise). They know neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "math/distribution.hpp"

namespace specllama {

// p(i), i = 0..gamma. Each p(i) is computed when a rule first asks for it, because a rule that stops early does not
// need the later ones.
using TargetAt = std::function<const Distribution &(std::size_t)>;

struct Verdict {
    std::size_t num_accepted;  // drafts 1..num_accepted stay
    int32_t next;              // the token after them: a correction, or a bonus if all were accepted
};

// The decision at one position, i = 0..gamma, if all drafts before it were accepted.
struct Step {
    bool accepted;  // the draft stays
    int32_t token;  // the token that this position gets
};

// The key of the random numbers of one round.
struct RoundNoise {
    std::uint64_t seed;
    std::uint64_t round;     // the number of the round in the generation
    std::uint64_t position;  // the index of d_1 in the history
};

class Rule {
public:
    // The description of a rule, wherever rules are listed.
    struct About {
        const char * name;
        const char * summary;
        bool independent_of_draft;  // for a seed, the text is the same whatever is drafted
        bool decides_in_steps;      // the rule decides position by position, and needs no p after a rejection
    };

    explicit Rule(About about) : about_(about) {}
    virtual ~Rule() = default;
    Rule(const Rule &) = delete;
    Rule & operator=(const Rule &) = delete;

    const About & about() const { return about_; }

    // Draws a token from q at drafted position i, as a drafter must draw it for this rule.
    virtual int32_t draw(const Distribution & q, const RoundNoise & noise, std::size_t i) const = 0;

    // Decides about a whole draft.
    virtual Verdict decide(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                           const RoundNoise & noise) const = 0;

    // Decides about position i alone, with the outcome of decide(). Only a rule that decides in steps has this
    // function.
    virtual Step decide_step(const Distribution &, const std::vector<Distribution> &, const std::vector<int32_t> &,
                             const RoundNoise &, std::size_t) const {
        throw std::logic_error(std::string(about_.name) + " does not decide in steps");
    }

private:
    About about_;
};

}  // namespace specllama
