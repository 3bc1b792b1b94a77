// What a drafter is: it sees what the target decodes, and offers tokens that may come next. See docs/a-new-drafter.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// What a drafter may know of a generation when it begins.
struct Task {
    std::size_t gamma;                    // at most so many tokens a round
    std::size_t max_tokens;               // at most so many in all
    bool paced;                           // drafting less where more does not pay
    Decoding & decoding;                  // what decodes for it
    const std::vector<int32_t> & corpus;  // a text to look at besides prompt and output, in this generation alone
};

// What the target holds of a text, and what of that it has just decoded.
struct DecodedBatch {
    const std::vector<int32_t> & history;  // all committed tokens; the target is to decode the last one next
    std::size_t unchanged;                 // so many of them are as they were when the drafter was shown them last
    // history[first .. first + count) was decoded by this batch, and kept. Of what the memory has reused, borrowed from
    // another text or loaded nothing was decoded: count is 0.
    std::size_t first;
    std::size_t count;
    // Their hidden states [count][state_size of the target's decoder], where a drafter needs them. Null: there are
    // none.
    const float * states;
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
    // Called between the parts of long work. What it throws is no std::exception, and ends the round. May be null.
    const std::function<void()> & poll;

    // What was generated in this call, and drafted after it.
    std::vector<int32_t> recent(const Proposal & proposal) const {
        std::vector<int32_t> tokens(history.begin() + static_cast<std::ptrdiff_t>(prompt_size), history.end());
        tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.end());
        return tokens;
    }
};

class Drafter {
public:
    explicit Drafter(Source source) : source_(source) {}
    virtual ~Drafter() = default;
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;

    Source source() const { return source_; }

    // A new generation. Its text follows by observe().
    virtual void begin(const Task &) {}
    // The target has decoded a batch for this text, or the text is another one now.
    virtual void observe(const DecodedBatch &) {}
    // What could be drafted next without a decode: at most `most` tokens after history and proposal, which may have
    // tokens that others drafted. It ends after a token that ends a text.
    virtual std::vector<DraftToken> offer(const DraftRequest &, const Proposal &, std::size_t most) = 0;
    // Rows that the target is to decode in this round beside the text's, at most `most`: none, or all that it needs.
    virtual std::vector<BesideRow> beside(std::size_t /*most*/) { return {}; }
    // They were decoded: the logits [n_vocab] of those that wanted some, in their order. What the round has made of the
    // text follows by observe(), unless it has failed.
    virtual void read_beside(const std::vector<const float *> & /*logits*/, std::size_t /*n_vocab*/) {}
    // The generation has ended with this text: what the drafter's memories hold of another one goes.
    virtual void finish(const std::vector<int32_t> &) {}

    // Whether observe() is to have the target's hidden states.
    virtual bool needs_states() const { return false; }
    // What it decodes with: the calls of the loop mark their decoders as in use.
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

    std::vector<DraftToken> offer(const DraftRequest &, const Proposal &, std::size_t) override { return {}; }
    DrawingDrafter * drawing() override { return this; }

    // One token after history and proposal; nothing if none can be drawn there. `before`: see Expectation.
    virtual std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                           const Proposal & proposal) = 0;

    // How many tokens could be drawn after the text.
    virtual std::size_t room() const = 0;
    // Tokens of it that have to be decoded before the next can be drawn.
    virtual std::size_t missing() const = 0;
    // At most so many at once.
    virtual std::size_t n_batch() const = 0;
    // So many tokens are drawn of one decode, where a pace decides.
    virtual std::size_t block() const { return 1; }
    // Decodes a part of the text that has not been seen. Returns how many tokens are left.
    virtual std::size_t catch_up() = 0;
    // Decodes a little of the text as drafted tokens are decoded, to see what that costs.
    virtual void probe() = 0;
    // What its decodes have cost is reported here.
    virtual void report_to(CostModel * costs) = 0;
    // Seconds spent decoding, and tokens decoded, since the beginning.
    virtual double decode_seconds() const = 0;
    virtual std::size_t num_decoded() const = 0;
};

}  // namespace specllama
