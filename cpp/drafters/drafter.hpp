// The interface of a drafter: it is notified of the batches that the target decodes, and offers tokens that may come
// next. See docs/a-new-drafter.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/proposal.hpp"
#include "drafters/source.hpp"
#include "llama/decoding.hpp"
#include "math/rules/rule.hpp"
#include "math/sampler_chain.hpp"

namespace specllama {

class CostModel;
class DrawingDrafter;

// What a drafter is told when a generation begins.
struct Task {
    std::size_t gamma;                    // the most tokens of a round
    std::size_t max_tokens;               // the most tokens of the whole generation
    bool paced;                           // draft fewer tokens where more do not pay
    Decoding & decoding;                  // decodes for the drafter
    const std::vector<int32_t> & corpus;  // more text to look for continuations in, for this generation only
};

// The text that the target holds, and the part of the text that the target has just decoded.
struct DecodedBatch {
    const std::vector<int32_t> & history;  // all committed tokens; the target is to decode the last one next
    std::size_t unchanged;                 // length of the prefix that has not changed since the last observe()
    // This batch decoded history[first .. first + count), which the target keeps. Tokens that were reused, borrowed
    // from another text or loaded were not decoded: count is 0 then.
    std::size_t first;
    std::size_t count;
    // The hidden states of these tokens [count][state_size of the target's decoder], where a drafter needs them. Null:
    // there are none.
    const float * states;
};

// What a drafter is told when it is to draft in a round.
struct DraftRequest {
    const std::vector<int32_t> & history;  // all committed tokens
    std::size_t prompt_size;               // history[prompt_size..] was generated in this call
    std::size_t gamma;                     // the most tokens to draft
    const Decoder & target;                // knows the vocabulary, and which tokens end a text
    const SamplerChain & chain;            // both p and q go through this chain
    const Rule & rule;                     // draws a token from q, with the noise below
    RoundNoise noise;
    bool paced;  // draft fewer than gamma where more do not pay; else up to gamma, even if they do not pay
    // Called between the parts of long work; ends the round by throwing something other than a std::exception. May be
    // null.
    const std::function<void()> & poll;

    // The tokens that were generated in this call, then the drafted ones.
    std::vector<int32_t> recent(const Proposal & proposal) const {
        std::vector<int32_t> tokens(history.begin() + static_cast<std::ptrdiff_t>(prompt_size), history.end());
        tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.end());
        return tokens;
    }
};

// A memory of a drafter, and the tokens that it is to hold before the text's last token.
struct DrafterMemory {
    std::shared_ptr<Sequence> sequence;
    std::vector<int32_t> tokens;
};

class Drafter {
public:
    explicit Drafter(Source source) : source_(source) {}
    virtual ~Drafter() = default;
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;

    Source source() const { return source_; }

    // A new generation begins. Its text follows by observe().
    virtual void begin(const Task &) {}
    // The target has decoded a batch of this text, or the text has changed.
    virtual void observe(const DecodedBatch &) {}
    // The tokens that could be drafted next without a decode: at most `most` tokens after history and proposal. The
    // proposal may hold tokens of other drafters. An offer ends after a token that ends a text.
    virtual std::vector<DraftToken> offer(const DraftRequest &, const Proposal &, std::size_t most) = 0;
    // The branch rows that the target is to decode in this round: all that the drafter needs; none if it needs none, or
    // more than `most`.
    virtual std::vector<BranchRow> branch_rows(std::size_t /*most*/) { return {}; }
    // The rows were decoded: receives the logits [n_vocab] of the rows with `wanted`, in their order. The text of the
    // round follows by observe(), unless the round fails.
    virtual void read_branch_rows(const std::vector<const float *> & /*logits*/, std::size_t /*n_vocab*/) {}
    // The generation has ended with this text: the drafter's memories forget all that is not part of this text.
    virtual void finish(const std::vector<int32_t> &) {}

    // How many numbers of the target's hidden states observe() needs for each token; 0: it needs no states.
    virtual std::size_t state_size() const { return 0; }
    // The sequences that the drafter decodes with. The loop marks their decoders as in use.
    virtual std::vector<Sequence *> sequences() const { return {}; }
    // The memories in which other code may put copies of tokens that were decoded before, when a generation has begun.
    virtual std::vector<DrafterMemory> memories(const std::vector<int32_t> & /*history*/) const { return {}; }
    // Other code has done so.
    virtual void refilled(const std::vector<int32_t> & /*history*/) {}
    // Whether the drafter offers only text that must come next. If it offers any, no other drafter is asked.
    virtual bool forces() const { return false; }
    // Whether a pace may choose how many tokens of an offer are taken; else the whole offer is taken.
    virtual bool can_be_paced() const { return true; }
    // This object, if it draws its tokens one by one; else null.
    virtual DrawingDrafter * drawing() { return nullptr; }

private:
    Source source_;
};

// A drafter that draws its tokens one by one from logits, which take time to compute.
class DrawingDrafter : public Drafter {
public:
    using Drafter::Drafter;

    std::vector<DraftToken> offer(const DraftRequest &, const Proposal &, std::size_t) override { return {}; }
    DrawingDrafter * drawing() override { return this; }

    // Draws one token after history and proposal; nothing if none can be drawn. `before`: the class of the token before
    // this one (see Expectation).
    virtual std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                           const Proposal & proposal) = 0;

    // The most tokens that could be drawn after the text.
    virtual std::size_t room() const = 0;
    // How many tokens of the text must be decoded before the next token can be drawn.
    virtual std::size_t missing() const = 0;
    // The most tokens of one decode.
    virtual std::size_t n_batch() const = 0;
    // How many tokens are drawn from one decode, if a pace decides how much is drafted.
    virtual std::size_t block() const { return 1; }
    // Decodes some of the tokens that the drafter's memory lacks. Returns how many tokens it still lacks.
    virtual std::size_t catch_up() = 0;
    // Decodes a little of the text in the way that drafted tokens are decoded, to measure what drafting costs.
    virtual void probe() = 0;
    // Sets the cost model that learns from the drafter's decodes.
    virtual void report_to(CostModel * costs) = 0;
    // Seconds spent decoding, and number of tokens decoded, since this object was made.
    virtual double decode_seconds() const = 0;
    virtual std::size_t num_decoded() const = 0;
};

}  // namespace specllama
