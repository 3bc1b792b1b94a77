// The loop: draft -> decode -> verify -> roll back; counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llama/decoding.hpp"
#include "loop/counters.hpp"
#include "loop/drafting.hpp"
#include "loop/examples.hpp"
#include "loop/target.hpp"
#include "math/rules/table.hpp"

namespace specllama {

struct Settings {
    SamplerParams sampler;
    const Rule * rule = &block_rule();
    std::size_t num_draft_tokens = 4;                       // gamma, or its maximum if paced; 0 is plain decoding
    bool paced = false;                                     // draft fewer tokens where more do not pay
    std::size_t max_tokens = static_cast<std::size_t>(-1);  // of the whole generation
    std::uint64_t seed = 0;
    // Applied to p only: the output is exact even if q is made without the processor. With a rule that decides in
    // steps, the processor is called once for each token of the text, in order, when that token is asked for, and it
    // sees no drafted tokens. So the processor may keep state.
    LogitsProcessor logits_processor = nullptr;
    std::shared_ptr<Constraint> constraint = nullptr;  // a grammar; null if there is none
    std::function<void()> poll = nullptr;  // called during long work; ends it by throwing (see DraftRequest)
    bool keeps_logits = false;             // the caller will call logits()
    std::vector<int32_t> corpus;           // more text to look for continuations in, besides prompt and output
    std::size_t num_likely = 0;            // examples() are kept, with so many likely tokens each; 0: none are
};

// What one round has emitted: accepted drafts, then one correction, bonus or (gamma = 0) plain token.
struct Round {
    std::vector<int32_t> tokens;
    std::size_t num_drafted = 0;
    std::size_t num_accepted = 0;
    bool is_open = false;  // the round has more tokens to give: see step()
};

// Between rounds: target KV = history without its last token (`pending`), draft KV = a prefix of history. After a
// rejection a recurrent target's memory also lacks the tokens of the last rounds; the next batch decodes them again. An
// exception leaves the history as it was before the call; the next call brings the caches back in step.
class Speculator {
public:
    // `drafting`: null means plain decoding. `decoding`: decodes for this text alone, or for many texts together.
    Speculator(std::shared_ptr<Sequence> target, std::unique_ptr<Decoding> decoding,
               std::unique_ptr<Drafting> drafting);

    // Starts a generation after `prompt`, keeping the part of the prompt that the caches hold. Throws
    // std::invalid_argument for an empty or over-long prompt, a token out of range, or bad settings.
    void begin(std::vector<int32_t> prompt, Settings settings);

    // The drafters' memories, and which tokens each is to hold of the text that begin() has begun: other code may put
    // copies of these tokens, and of the target's, into the memories. refilled() is to be called then, with the number
    // of the target's tokens that came from copies in memory and from files.
    std::vector<DrafterMemory> memories();
    void refilled(std::size_t num_from_ram, std::size_t num_from_disk);

    // Decodes one chunk of the prompt except its last token: with the target, or, after the first round, with the
    // draft. Returns whether to call it again. Where the end of the prompt fits into one batch of the target, it is
    // left to the first round: a step() of one token decodes it together with the last token.
    bool prefill();

    // Runs one round of at most max_tokens >= 1 tokens. With a logits processor, a rule that decides in steps gives one
    // token in each call, because the processor is called only for wanted tokens. The round stays open meanwhile.
    const Round & step(std::size_t max_tokens);
    bool round_is_open() const { return round_.is_open; }

    // Decodes only the pending token, for a caller who samples the next token and then calls extend().
    void decode_pending();

    // The target's logits [n_vocab] from which token i of the last round is sampled; after decode_pending(), row 0 is
    // for the next token.
    const float * logits(std::size_t i);

    // The source of each token that the last round drafted, the accepted ones first.
    const std::vector<Expectation> & drafted() const { return proposal_.expected; }
    // min(1, p(d) / q(d)) of token i of the last round; nothing if it was not an accepted draft.
    std::optional<double> acceptance_probability(std::size_t i) const;

    // What a head can learn from the rounds since the last call.
    Examples take_examples();
    std::size_t num_examples() const { return examples_ ? examples_->size() : 0; }

    // Forgets all but the first `count` tokens of history. The prompt cannot be forgotten.
    void rewind(std::size_t count);
    // Appends tokens that the caller chose.
    void extend(const std::vector<int32_t> & tokens);
    // Ends the generation. Both caches keep only what belongs to the first `count` tokens of history. Returns how many
    // of these the target's cache holds. `num_given`: how many of the tokens after the prompt came from the caller.
    std::size_t finish(std::size_t count, std::size_t num_given = 0);

    std::size_t n_vocab() const { return target_sequence().decoder().n_vocab(); }
    const std::vector<int32_t> & history() const { return history_; }
    const Counters & counters() const { return counters_; }
    // The pace, which decides how much is drafted; null without drafters, or if one of them cannot be paced.
    Pace * pace() { return drafting_ ? drafting_->pace() : nullptr; }
    // Why drafting was stopped in this generation; empty if it was not.
    const std::string & drafting_stopped() const { return drafting_stopped_; }

private:
    // The parts of a round, in their order.
    void draft(std::size_t max_tokens);
    void decoded(double seconds);
    void verify();
    void commit();

    std::shared_ptr<void> visit();
    std::size_t choose_gamma(std::size_t max_tokens) const;
    void propose(std::size_t gamma);
    void ask_branch_rows();
    void read_branch_rows();
    void settle();
    void forget_round();
    void abandon_round();
    const std::vector<int32_t> & text();
    std::size_t num_tokens(std::size_t count) const;
    void observe(std::size_t first, std::size_t count, const float * states = nullptr);
    bool prefill_target(bool leaves_end);
    void read_along();
    void keep_examples();
    void share_costs();
    void copy_pace();
    void stop_drafting(const std::string & why);
    void count_decoded();
    void require_generation() const;
    bool drafts() const { return drafting_ && settings_.num_draft_tokens > 0 && drafting_stopped_.empty(); }
    // Whether logits may be read after another text has decoded, so that they must be copied.
    bool copies_rows() const { return settings_.keeps_logits || settings_.logits_processor; }
    // Seconds of verification, including those of rollbacks.
    double verify_seconds() const { return counters_.verify_seconds + counters_.rollback_seconds; }

    std::vector<Sequence *> sequences();
    Sequence & target_sequence() { return target_.sequence(); }
    const Sequence & target_sequence() const { return target_.sequence(); }

    std::unique_ptr<Decoding> decoding_;
    Target target_;
    std::unique_ptr<Drafting> drafting_;
    bool under_way_ = false;  // a generation is under way

    std::vector<int32_t> history_;
    bool has_embeddings_ = false;  // the prompt has embeddings
    std::vector<int32_t> text_;    // history without embeddings: see text()
    Settings settings_;
    std::optional<SamplerChain> draft_chain_;
    std::uint64_t round_number_ = 0;
    std::string drafting_stopped_;
    std::size_t num_observed_ = 0;  // length of the prefix of history that the drafters have seen

    Proposal proposal_;
    std::vector<BranchRow> branch_rows_;  // that a drafter has the target decode in this round
    std::vector<int32_t> sequence_;       // history, d_1..d_gamma
    bool proposed_ = false;               // a drafter was asked in this round
    bool carries_ = false;                // this round also decodes tokens left by the last rejection or the prompt
    std::size_t num_of_prompt_ = 0;       // tokens of the prompt that this round decodes
    double draft_before_ = 0.0;
    double verify_before_ = 0.0;
    Round round_;
    std::optional<Examples> examples_;  // of the last rounds, where they are kept
    Counters counters_;
    std::size_t target_decoded_before_ = 0;
    std::size_t borrowed_before_ = 0;
    std::size_t draft_decoded_before_ = 0;
};

}  // namespace specllama
