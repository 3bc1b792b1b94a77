// Drafters together: what each offers, token by token, as far as it pays (design sections 7 and 8). It knows no kinds
// of them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "drafters/drafter.hpp"
#include "pacing/pace.hpp"

namespace specllama {

// What became of a proposal.
struct Outcome {
    const std::vector<int32_t> & emitted;  // accepted drafts, and one token of the target's
    bool proposed;                         // whether propose() was called for it
    std::size_t num_drafted;
    std::size_t num_accepted;
    double draft_seconds;   // llama_decode only
    double verify_seconds;  // the same
};

class Drafting {
public:
    // Of several offers that are equally good the first drafter's is taken; without a pace, the first one's that there
    // is. Of those that draw each round has one: throws std::invalid_argument for two of one kind.
    explicit Drafting(std::vector<std::unique_ptr<Drafter>> drafters);

    std::vector<Sequence *> sequences() const;
    // Whether observe() is to have the target's hidden states.
    bool needs_states() const;

    // How many tokens could be proposed after the text.
    std::size_t room() const;

    // A new generation. Its text follows by observe(), the whole prompt first.
    void begin(const Task & task);
    void observe(const DecodedBatch & batch);
    // It drafts no more in this generation.
    void stop();
    // The generation has ended with this text.
    void finish(const std::vector<int32_t> & history);

    // Has the drawers decode one chunk of the prompt each, if that is likely to pay, and now and then two tokens of it
    // if it is not. One that has not decoded the prompt does so in the round in which it draws. Returns how many tokens
    // are left to be decoded before the first round.
    std::size_t prefill();
    // What reads hidden states reads a prompt together with the target: those of a whole prompt would take much memory.
    void read_along();
    // Which prompts pay. When more texts share the batches than when this one began, some may no longer.
    void weigh_prompts();
    // Now and then, where a prompt did not pay: whether prefill() is to be called once more. A text that is longer than
    // usual may go on for long.
    bool reconsiders();

    // Appends up to gamma tokens to an empty proposal. Paced: whatever promises most. Else gamma tokens of the first
    // drawer that can, or, without one, all that is offered. It may stop early, after a token, and does after one that
    // ends a text: what would follow is of no use.
    void propose(const DraftRequest & request, Proposal & out);

    // See Drafter. One drafter has them in a round, the first one that asks.
    std::vector<BesideRow> beside(std::size_t most);
    void read_beside(const std::vector<const float *> & logits, std::size_t n_vocab);

    // How a round went, whether it was asked to propose or not.
    void learn(const Outcome & outcome);

    // What decides how much is drafted; null if nothing does.
    Pace * pace() { return can_be_paced_ ? &pace_ : nullptr; }

    // Seconds spent decoding, and tokens decoded, since the beginning.
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
    bool go_on(const DraftRequest & request, const Pace::Decision & decision, std::vector<Offer> & offers,
               Proposal & out);
    void append(DraftToken token, Proposal & out);
    void judge_unused(const Offer & offer, const std::vector<int32_t> & emitted);

    std::vector<std::unique_ptr<Drafter>> drafters_;
    std::vector<DrawingDrafter *> drawers_;  // of them
    DrawingDrafter * drawer_ = nullptr;      // of this round
    Drafter * beside_ = nullptr;             // who has rows beside the text's in it
    bool can_be_paced_ = true;
    Pace pace_;
    std::optional<Task> task_;
    std::vector<bool> prompt_pays_;    // for each drawer to decode
    std::vector<bool> probes_;         // it decodes two tokens of it all the same
    std::size_t num_looks_ = 0;        // at prompts that do not pay
    bool reconsidered_ = false;        // they are decoded after all
    bool begun_ = false;               // the generation: its prompt is known
    bool paced_ = false;               // this round
    std::vector<Offer> offered_;       // at the beginning of the round
    std::optional<std::size_t> used_;  // which of them was taken
};

}  // namespace specllama
