// The interface of everything that proposes tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "acceptance_rates.hpp"
#include "acceptance_rules/rule.hpp"
#include "distribution.hpp"
#include "sequence.hpp"

namespace specllama {

class Pace;

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

// What a drafter may know of a generation when it begins.
struct Task {
    std::size_t gamma;       // at most so many tokens a round
    std::size_t max_tokens;  // at most so many in all
    bool paced;              // drafting less where more does not pay
};

// What a drafter may know of the round.
struct DraftRequest {
    const std::vector<int32_t> & history;  // all committed tokens
    std::size_t prompt_size;               // history[prompt_size..] was generated in this call
    std::size_t gamma;                     // at most so many tokens
    const Decoder & target;                // which tokens there are, and which end a text
    const SamplerChain & chain;            // p and q go through the same one
    const Rule & rule;                     // by which a token of q is drawn, with this noise
    RoundNoise noise;
    bool paced;  // fewer than gamma where more do not pay; else as many as there are
    // Which token was drawn may decide whether it is proposed: the target's token is the same with any draft, as it is
    // in coupled and in greedy decoding.
    bool may_drop;
    // Called between the parts of long work. What it throws is no std::exception, and ends the round. May be null.
    const std::function<void()> & heed;
};

// What became of a proposal.
struct Outcome {
    const std::vector<int32_t> & emitted;  // accepted drafts, and one token of the target's
    bool proposed;                         // whether propose() was called for it
    std::size_t num_drafted;
    std::size_t num_accepted;
    double draft_seconds;   // llama_decode only
    double verify_seconds;  // the same
};

class Drafter {
public:
    virtual ~Drafter() = default;
    Drafter() = default;
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;

    // Those that it decodes with: the loop marks their decoders as in use, and has them forget what was rejected.
    virtual std::vector<Sequence *> sequences() const { return {}; }

    // How many tokens could be proposed behind a history of this size.
    virtual std::size_t room(std::size_t history_size) const = 0;

    // A new generation, behind this prompt: keep what is known of it.
    virtual void begin(const std::vector<int32_t> & history, const Task & task) = 0;

    // Decodes one chunk of history that has not been seen. Returns how many tokens are left to be decoded before the
    // first round.
    virtual std::size_t prefill(const std::vector<int32_t> & history) = 0;

    // Appends up to gamma tokens to an empty proposal. It may stop early, after a token, and does behind one that ends
    // a text: what would follow is of no use.
    virtual void propose(const DraftRequest & request, Proposal & out) = 0;

    // The history after verification, longer than before: forget what was rejected.
    virtual void commit(const std::vector<int32_t> & history) = 0;

    // How a round went, whether it was asked to propose or not.
    virtual void learn(const Outcome &) {}
    // What decides how much it drafts; null if nothing does.
    virtual Pace * pace() { return nullptr; }

    // All but the first `count` tokens of history are no longer part of it.
    virtual void rewind(std::size_t count) = 0;

    // Seconds spent decoding, and tokens decoded, since the beginning.
    virtual double decode_seconds() const = 0;
    virtual std::size_t num_decoded() const = 0;
};

}  // namespace specllama
