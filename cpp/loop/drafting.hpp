// Several drafters together: asks each of them for tokens, and drafts as many as pay. This code does not know which
// kinds of drafters there are.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "drafters/drafter.hpp"
#include "pacing/pace.hpp"

namespace specllama {

// The result of one round, for learn().
struct Outcome {
    const std::vector<int32_t> & emitted;  // the accepted drafts, then one token of the target's own
    bool proposed;                         // whether propose() was called in the round
    std::size_t num_drafted;
    std::size_t num_accepted;
    double draft_seconds;   // llama_decode only
    double verify_seconds;  // llama_decode only
};

class Drafting {
public:
    // Of several offers that are equally good, the first drafter's is taken. Without a pace, the first offer that is
    // found is taken. At most one drafter draws in a round. Throws std::invalid_argument for two drawing drafters of
    // one kind.
    explicit Drafting(std::vector<std::shared_ptr<Drafter>> drafters);

    std::vector<Sequence *> sequences() const;
    // Both call the drafters' function of the same name.
    std::vector<DrafterMemory> memories(const std::vector<int32_t> & history) const;
    void refilled(const std::vector<int32_t> & history);
    // Whether observe() needs the target's hidden states.
    bool needs_states() const;

    // The most tokens that could be proposed after the text.
    std::size_t room() const;

    // Starts a new generation. Its text follows by observe(), the whole prompt first.
    void begin(const Task & task);
    void observe(const DecodedBatch & batch);
    // Ends drafting for the rest of this generation.
    void stop();
    // Tells the drafters that the generation has ended with this text.
    void finish(const std::vector<int32_t> & history);

    // Lets each drawing drafter for which decoding the prompt pays decode one chunk of the prompt. Where decoding it
    // does not pay, the drafter decodes two tokens of it now and then as a probe. A drafter that has not decoded the
    // prompt here decodes it in the round in which the drafter draws. Returns how many tokens are left to be decoded
    // before the first round.
    std::size_t prefill();
    // Lets the drafters that read hidden states read each chunk of the prompt right after the target has decoded it,
    // because the hidden states of a whole prompt would take much memory.
    void read_along();
    // Decides for which drawing drafters decoding the prompt pays. The answer may change when more texts share the
    // batches than at the beginning.
    void weigh_prompts();
    // Whether prefill() is to be called once more although decoding a prompt did not pay. This is tried now and then,
    // because a text that is longer than usual may go on for long, so that decoding its prompt pays after all.
    bool reconsiders();

    // Appends up to gamma tokens to an empty proposal. With a pace, these are the tokens that promise most. Without a
    // pace, these are gamma tokens of the first drawing drafter that has room for gamma tokens; if no drafter has, all
    // tokens that are offered. A proposal may end early, and always ends after a token that ends a text.
    void propose(const DraftRequest & request, Proposal & out);

    // Both call the drafters' function of the same name. In a round, only the first drafter that has branch rows gets
    // them decoded.
    std::vector<BranchRow> branch_rows(std::size_t most);
    void read_branch_rows(const std::vector<const float *> & logits, std::size_t n_vocab);

    // Learns from the outcome of a round. To be called after every round, with a proposal or without.
    void learn(const Outcome & outcome);

    // The pace, which decides how much is drafted; null if one of the drafters cannot be paced.
    Pace * pace() { return can_be_paced_ ? &pace_ : nullptr; }

    // Seconds spent decoding, and number of tokens decoded, since this object was made.
    double decode_seconds() const;
    std::size_t num_decoded() const;

private:
    using Offer = std::vector<DraftToken>;

    static void drop_plans(const Drafter & drafter);
    std::size_t catch_up(std::size_t drawer);
    void choose_drawer(std::size_t gamma);
    std::vector<Offer> find(const DraftRequest & request, const Proposal & out, std::size_t most);
    Offer forced(const DraftRequest & request, const Proposal & out, std::size_t most);
    Pace::Decision decide(const std::vector<Offer> & offers);
    void append(DraftToken token, Proposal & out);
    void judge_unused(const Offer & offer, const std::vector<int32_t> & emitted);

    std::vector<std::shared_ptr<Drafter>> drafters_;
    std::vector<DrawingDrafter *> drawers_;  // those of drafters_ that draw
    DrawingDrafter * drawer_ = nullptr;      // the one that draws in this round
    Drafter * branching_ = nullptr;          // the one whose rows beside the text (BranchRow) the target decodes
    bool can_be_paced_ = true;
    Pace pace_;
    std::optional<Task> task_;
    std::vector<bool> prompt_pays_;    // for each of drawers_: whether decoding its prompt pays
    std::vector<bool> probes_;         // for each of drawers_: two tokens of its prompt are decoded as a probe
    std::size_t num_looks_ = 0;        // in how many rounds reconsiders() found a prompt that does not pay
    bool reconsidered_ = false;        // prompts that did not pay are decoded after all
    bool begun_ = false;               // the generation's prompt is known
    bool paced_ = false;               // a pace decides in this round
    std::vector<Offer> offered_;       // all offers at the beginning of the round
    std::optional<std::size_t> used_;  // which of the offers was taken
};

}  // namespace specllama
