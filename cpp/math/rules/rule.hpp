// What an acceptance rule is: it decides which drafted tokens stay, and which token comes after them.
//
// p_1..p_{gamma+1} are the target's distributions at the drafted positions and after them, q_1..q_gamma those that
// the drafts d_1..d_gamma were drawn from. Every rule leaves the target's distribution exactly as it is. Rules are
// functions of (p, q, draft, noise). They know neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "math/distribution.hpp"

namespace specllama {

// p(i), i = 0..gamma: computed when a rule first asks for it, because a rule that stops early needs no more.
using TargetAt = std::function<const Distribution &(std::size_t)>;

struct Verdict {
    std::size_t num_accepted;  // drafts 1..num_accepted stay
    int32_t next;              // the token after them: a correction, or a bonus if all were accepted
};

// What becomes of one position, i = 0..gamma, if all drafts before it were accepted.
struct Step {
    bool accepted;  // the draft stays
    int32_t token;  // which comes there
};

// Where the random numbers of one round come from.
struct RoundNoise {
    std::uint64_t seed;
    std::uint64_t round;     // its number in the generation
    std::uint64_t position;  // the index of d_1 in the history
};

class Rule {
public:
    // What is said of it, wherever rules are listed.
    struct About {
        const char * name;
        const char * summary;
        bool independent_of_draft;  // for a seed, the text is the same whatever is drafted
        bool decides_in_steps;      // position by position, without looking at p after a rejection
    };

    explicit Rule(About about) : about_(about) {}
    virtual ~Rule() = default;
    Rule(const Rule &) = delete;
    Rule & operator=(const Rule &) = delete;

    const About & about() const { return about_; }

    // A token of q at drafted position i, as a drafter must draw it for this rule.
    virtual int32_t draw(const Distribution & q, const RoundNoise & noise, std::size_t i) const = 0;

    // What becomes of a whole draft.
    virtual Verdict decide(const TargetAt & p, const std::vector<Distribution> & q, const std::vector<int32_t> & draft,
                           const RoundNoise & noise) const = 0;

    // What becomes of position i alone: the same as decide(), for a rule that decides in steps.
    virtual Step decide_step(const Distribution &, const std::vector<Distribution> &, const std::vector<int32_t> &,
                             const RoundNoise &, std::size_t) const {
        throw std::logic_error(std::string(about_.name) + " does not decide in steps");
    }

private:
    About about_;
};

}  // namespace specllama
