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
    // is. At most one of them draws: throws std::invalid_argument for a second one.
    explicit Drafting(std::vector<std::unique_ptr<Drafter>> drafters);

    std::vector<Sequence *> sequences() const;
    // Whether observe() is to have the target's hidden states.
    bool needs_states() const;

    // How many tokens could be proposed after the text.
    std::size_t room() const { return drawer_ != nullptr ? drawer_->room() : static_cast<std::size_t>(-1); }

    // A new generation. Its text follows by observe(), the whole prompt first.
    void begin(const Task & task);
    void observe(const DecodedBatch & batch);
    // The generation has ended with this text.
    void finish(const std::vector<int32_t> & history);

    // Has the drawer decode one chunk of the prompt, if that is likely to pay, and now and then two tokens of it if it
    // is not. If it has not decoded the prompt, it does so in the round in which drawing pays. Returns how many tokens
    // are left to be decoded before the first round.
    std::size_t prefill();
    // More texts may share the batches than when this one began: its prompt may no longer pay.
    void reconsider();

    // Appends up to gamma tokens to an empty proposal. Paced: whatever promises most. Else gamma tokens of the drawer,
    // or, without one, all that is offered. It may stop early, after a token, and does after one that ends a text:
    // what would follow is of no use.
    void propose(const DraftRequest & request, Proposal & out);

    // How a round went, whether it was asked to propose or not.
    void learn(const Outcome & outcome);

    // What decides how much is drafted; null if nothing does.
    Pace * pace() { return can_be_paced_ ? &pace_ : nullptr; }

    // Seconds spent decoding, and tokens decoded, since the beginning.
    double decode_seconds() const { return drawer_ == nullptr ? 0.0 : drawer_->decode_seconds(); }
    std::size_t num_decoded() const { return drawer_ == nullptr ? 0 : drawer_->num_decoded(); }

private:
    using Offer = std::vector<DraftToken>;

    bool prompt_pays();
    std::vector<Offer> find(const DraftRequest & request, const Proposal & out, std::size_t most);
    Offer forced(const DraftRequest & request, const Proposal & out, std::size_t most);
    Pace::Decision decide(const std::vector<Offer> & offers);
    bool go_on(const DraftRequest & request, const Pace::Decision & decision, std::vector<Offer> & offers,
               Proposal & out);
    void append(DraftToken token, Proposal & out);
    void judge_unused(const Offer & offer, const std::vector<int32_t> & emitted);

    std::vector<std::unique_ptr<Drafter>> drafters_;
    DrawingDrafter * drawer_ = nullptr;  // one of them
    bool can_be_paced_ = true;
    Pace pace_;
    std::optional<Task> task_;
    bool prompt_pays_ = true;          // for the drawer to decode
    bool probes_ = false;              // it decodes two tokens of it all the same
    bool begun_ = false;               // the generation: its prompt is known
    bool paced_ = false;               // this round
    std::vector<Offer> offered_;       // at the beginning of the round
    std::optional<std::size_t> used_;  // which of them was taken
};

}  // namespace specllama
