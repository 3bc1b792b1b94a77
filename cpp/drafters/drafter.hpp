// What a drafter is: it offers tokens that may come next. See docs/a-new-drafter.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "drafters/proposal.hpp"
#include "drafters/source.hpp"
#include "llama/decoding.hpp"
#include "math/rules/rule.hpp"
#include "math/sampler_chain.hpp"
#include "pacing/acceptance_rates.hpp"

namespace specllama {

class CostModel;
class DrawingDrafter;

// What a drafter may know of a generation when it begins.
struct Task {
    std::size_t gamma;       // at most so many tokens a round
    std::size_t max_tokens;  // at most so many in all
    bool paced;              // drafting less where more does not pay
    Decoding & decoding;     // what decodes for it
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
    const std::function<void()> & poll;

    // What was generated in this call, and drafted behind it.
    std::vector<int32_t> recent(const Proposal & proposal) const {
        std::vector<int32_t> tokens(history.begin() + static_cast<std::ptrdiff_t>(prompt_size), history.end());
        tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.end());
        return tokens;
    }
};

// What a drafter could draft next without a decode.
struct Offer {
    std::vector<int32_t> tokens;
    std::vector<Expectation> expectations;  // [tokens]
    // [tokens], if they were drawn; else each is certain: a function of the history, the corpus and the tokens before.
    std::vector<Distribution> q;
    // So many of them, at the beginning, have nothing else that could come in their place.
    std::size_t num_certain = 0;

    void append(int32_t token, const Expectation & expected) {
        tokens.push_back(token);
        expectations.push_back(expected);
    }
    // Leaves tokens out, from number `count` on.
    void cut(std::size_t count) {
        tokens.resize(count);
        expectations.resize(count);
        q.resize(std::min(count, q.size()));
    }
};

class Drafter {
public:
    explicit Drafter(Source source) : source_(source) {}
    virtual ~Drafter() = default;
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;

    Source source() const { return source_; }

    // At most `most` tokens behind history and proposal, which may have tokens that others drafted. It ends behind a
    // token that ends a text.
    virtual Offer offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) = 0;

    // A new generation, behind this prompt: keep what is known of it.
    virtual void begin(const std::vector<int32_t> &, const Task &) {}
    // The history after verification, longer than before: forget what was pushed behind it.
    virtual void commit(const std::vector<int32_t> &) {}
    // A token was drafted, by whomever.
    virtual void push(int32_t) {}
    // All but the first `count` tokens of history are no longer part of it.
    virtual void rewind(std::size_t) {}

    // Those that it decodes with: the loop marks their decoders as in use, and has them forget what was rejected.
    virtual std::vector<Sequence *> sequences() const { return {}; }
    // Whether what it offers must come, so that no other offer is worth a look.
    virtual bool forces() const { return false; }
    // Whether a pace may choose how much is taken; else all of it is.
    virtual bool can_be_paced() const { return true; }
    // Itself, if it draws its tokens one by one.
    virtual DrawingDrafter * drawing() { return nullptr; }

private:
    Source source_;
};

// A drafter that draws its tokens one by one, which costs decodes.
class DrawingDrafter : public Drafter {
public:
    using Drafter::Drafter;

    Offer offer(const DraftRequest &, const Proposal &, std::size_t) override { return {}; }
    DrawingDrafter * drawing() override { return this; }

    // Appends one token behind history and proposal. `before`: for what is returned, see Expectation.
    virtual Expectation draw(const DraftRequest & request, std::size_t before, Proposal & out) = 0;

    // How many tokens could be drawn behind a history of this size.
    virtual std::size_t room(std::size_t history_size) const = 0;
    // Tokens that have to be decoded before the next can be drawn, behind a sequence of this length.
    virtual std::size_t missing(std::size_t sequence_size) const = 0;
    // At most so many at once.
    virtual std::size_t n_batch() const = 0;
    // Decodes one chunk of history that has not been seen. Returns how many tokens are left to be decoded before the
    // first round.
    virtual std::size_t prefill(const std::vector<int32_t> & history) = 0;
    // Decodes a little of the prompt as drafted tokens are decoded, to see what that costs.
    virtual void probe(const std::vector<int32_t> & history) = 0;
    // What its decodes have cost is reported here.
    virtual void report_to(CostModel * costs) = 0;
    // Seconds spent decoding, and tokens decoded, since the beginning.
    virtual double decode_seconds() const = 0;
    virtual std::size_t num_decoded() const = 0;
};

}  // namespace specllama
