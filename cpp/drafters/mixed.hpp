// Lookup and a draft model together, token by token, each where it pays (design sections 7 and 8).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "../drafter.hpp"
#include "../pace.hpp"
#include "lookup.hpp"
#include "model.hpp"

namespace specllama {

class MixedDrafter final : public Drafter {
public:
    // model may be null: lookup alone. corpus: see Lookup.
    MixedDrafter(std::unique_ptr<ModelDrafter> model, const std::vector<int32_t> & corpus);

    std::vector<Sequence *> sequences() const override;
    std::size_t room(std::size_t history_size) const override;
    void begin(const std::vector<int32_t> & history, const Task & task) override;
    // The model's prompt, if that is likely to pay, and now and then two tokens of it if it is not. Else it may catch
    // up in a round in which it does.
    std::size_t prefill(const std::vector<int32_t> & history) override;
    // Paced: whatever promises most. Else gamma tokens of the model, or all guesses there are if there is no model.
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> & history) override;
    void rewind(std::size_t count) override;
    void learn(const Outcome & outcome) override;
    double decode_seconds() const override { return model_ ? model_->decode_seconds() : 0.0; }
    std::size_t num_decoded() const override { return model_ ? model_->num_decoded() : 0; }

    Pace * pace() override { return &pace_; }

private:
    bool prompt_pays(const std::vector<int32_t> & history);
    void mix(const DraftRequest & request, Proposal & out);
    void guess(const DraftRequest & request, Proposal & out);
    void drop(Proposal & out);
    Lookup::Found find(const DraftRequest & request, const Proposal & out) const;
    void take(const DraftRequest & request, const Pace::Decision & decision, const Lookup::Found & found,
              Proposal & out);

    std::unique_ptr<ModelDrafter> model_;
    Lookup lookup_;
    Pace pace_;
    Task task_{};
    bool prompt_pays_ = true;         // for the model to decode
    bool probes_ = false;             // it decodes two tokens of it all the same
    bool paced_ = false;              // this round
    Lookup::Found offered_;           // by the lookup at the beginning of the round
    bool used_ = false;               // whether it was taken
    std::optional<int32_t> dropped_;  // the first token that was not worth verifying
    std::size_t num_kept_ = 0;        // the tokens before it
};

}  // namespace specllama
