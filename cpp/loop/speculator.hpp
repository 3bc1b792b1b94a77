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
#include "loop/target.hpp"
#include "math/rules/table.hpp"

namespace specllama {

struct Settings {
    SamplerParams sampler;
    const Rule * rule = &block_rule();
    std::size_t num_draft_tokens = 4;                       // gamma, or the most of it; 0 is plain decoding
    bool paced = false;                                     // draft fewer where more do not pay
    std::size_t max_tokens = static_cast<std::size_t>(-1);  // of the generation
    std::uint64_t seed = 0;
    // Of p only, and with a rule that decides in steps called once for each token of the text, in order, behind the
    // text alone, when that token is asked for: so it may remember what it was called with. q needs no processor to be
    // exact.
    LogitsProcessor logits_processor = nullptr;
    std::shared_ptr<Constraint> constraint = nullptr;  // a grammar, if any
    std::function<void()> poll = nullptr;              // see DraftRequest
    bool keeps_logits = false;                         // logits() is called
    std::vector<int32_t> corpus;                       // a text to look at besides prompt and output
};

// What one round has emitted: accepted drafts, then one correction, bonus or (gamma = 0) plain token.
struct Round {
    std::vector<int32_t> tokens;
    std::size_t num_drafted = 0;
    std::size_t num_accepted = 0;
    bool is_open = false;  // there is more to come: see step()
};

// Between rounds: target KV = history without its last token (`pending`), draft KV = a prefix of history. After a
// rejection a recurrent target's memory lacks the tokens of the last rounds, too: the next batch brings them back.
// An exception leaves the history as it was before the call; the next call brings the caches back in step.
class Speculator {
public:
    // `drafting` may be null: plain decoding. `decoding`: alone, or among many texts.
    Speculator(std::shared_ptr<Sequence> target, std::unique_ptr<Decoding> decoding,
               std::unique_ptr<Drafting> drafting);

    // Starts a generation behind `prompt`, keeping what the caches have of it. Throws std::invalid_argument for an
    // empty or over-long prompt, a token out of range, or bad settings.
    void begin(std::vector<int32_t> prompt, Settings settings);

    // Decodes one chunk of the prompt with the target, or after the first round with the draft, but for its last token.
    // Returns whether to call it again. What of the target's fits into one batch is left to the first round: a step()
    // of one token decodes it together with the last one.
    bool prefill();

    // One round, of at most max_tokens >= 1 tokens. With a logits processor, which is asked only for tokens that are
    // wanted, one token of it: the round stays open, and the next call goes on with it.
    const Round & step(std::size_t max_tokens);
    bool round_is_open() const { return round_.is_open; }

    // Decodes only the pending token, for a caller who samples on their own and then calls extend().
    void decode_pending();

    // The target's logits [n_vocab] from which token i of the last round (or pending's successor) is sampled.
    const float * logits(std::size_t i);

    // Where the tokens that the last round drafted came from, the accepted ones first.
    const std::vector<Expectation> & drafted() const { return proposal_.expected; }
    // min(1, p(d) / q(d)) of token i of the last round; nothing unless it was drafted and accepted.
    std::optional<double> acceptance_probability(std::size_t i) const;

    // Forgets all but the first `count` tokens of history; the prompt stays.
    void rewind(std::size_t count);
    // Appends tokens that the caller chose.
    void extend(const std::vector<int32_t> & tokens);
    // Ends the generation: leaves in both caches what belongs to the first `count` tokens of history. Returns how many
    // of them the target's holds. `num_given`: how many behind the prompt were the caller's own.
    std::size_t finish(std::size_t count, std::size_t num_given = 0);

    std::size_t n_vocab() const { return own().decoder().n_vocab(); }
    const std::vector<int32_t> & history() const { return history_; }
    const Counters & counters() const { return counters_; }
    // What decides how much is drafted; null if nothing does.
    Pace * pace() { return drafting_ ? drafting_->pace() : nullptr; }
    // Why drafting was given up in this generation; empty if it was not.
    const std::string & drafting_stopped() const { return drafting_stopped_; }

private:
    // A round.
    void draft(std::size_t max_tokens);
    void decode();
    void verify();
    void commit();

    std::shared_ptr<void> visit();
    std::size_t choose_gamma(std::size_t max_tokens) const;
    void propose(std::size_t gamma);
    void ask_beside();
    void read_beside();
    void settle();
    void forget_round();
    void abandon_round();
    const std::vector<int32_t> & text();
    std::size_t num_tokens(std::size_t count) const;
    void show(std::size_t first, std::size_t count, const float * states = nullptr);
    bool prefill_target(bool leaves_end);
    void read_along();
    void share_costs();
    void copy_pace();
    void stop_drafting(const std::string & why);
    void heed(double seconds);
    void count_decoded();
    void require_generation() const;
    bool drafts() const { return drafting_ && settings_.num_draft_tokens > 0 && drafting_stopped_.empty(); }
    // Whether somebody looks at logits when another text may have decoded.
    bool copies_rows() const { return settings_.keeps_logits || settings_.logits_processor || settings_.constraint; }
    // What verification has cost, what became of a rejection included.
    double verify_seconds() const { return counters_.verify_seconds + counters_.rollback_seconds; }

    std::vector<Sequence *> sequences();
    Sequence & own() { return target_.sequence(); }  // the target's
    const Sequence & own() const { return target_.sequence(); }

    std::unique_ptr<Decoding> decoding_;
    Target target_;
    std::unique_ptr<Drafting> drafting_;
    bool under_way_ = false;  // a generation

    std::vector<int32_t> history_;
    bool has_embeddings_ = false;  // the prompt
    std::vector<int32_t> text_;    // see text()
    Settings settings_;
    std::optional<SamplerChain> draft_chain_;
    std::uint64_t round_number_ = 0;
    std::string drafting_stopped_;
    std::size_t num_shown_ = 0;  // tokens that the drafters know, and that history still has

    Proposal proposal_;
    std::vector<BesideRow> beside_;    // what a drafter has the target decode beside the text
    std::vector<int32_t> sequence_;    // history, d_1..d_gamma
    bool proposed_ = false;            // in this round the drafter was asked
    bool carries_ = false;             // it pays for the last rejection, or for a part of the prompt
    std::size_t num_of_prompt_ = 0;    // tokens of that part
    double constraint_seconds_ = 0.0;  // that it has taken while the round was drafted, as far as that is long
    double draft_before_ = 0.0;
    double verify_before_ = 0.0;
    Round round_;
    Counters counters_;
    std::size_t target_decoded_before_ = 0;
    std::size_t borrowed_before_ = 0;
    std::size_t draft_decoded_before_ = 0;
};

}  // namespace specllama
