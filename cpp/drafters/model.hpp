// The papers' draft: a second, smaller model with a decoder of its own.
#pragma once

#include <memory>

#include "../cost_model.hpp"
#include "../drafter.hpp"
#include "../sequence.hpp"

namespace specllama {

class ModelDrafter final : public Drafter {
public:
    explicit ModelDrafter(std::shared_ptr<Sequence> sequence) : own_(std::move(sequence)) {}

    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    std::size_t room(std::size_t history_size) const override;
    void begin(const std::vector<int32_t> & history, const Task &) override {
        prompt_size_ = history.size();
        own_->keep_common(history);
    }
    std::size_t prefill(const std::vector<int32_t> & history) override;
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> & history) override { own_->keep_common(history); }
    void rewind(std::size_t) override {}  // commit() compares
    double decode_seconds() const override { return own_->decoder().decode_seconds(); }
    std::size_t num_decoded() const override { return own_->decoder().num_decoded(); }

    // One token behind history and proposal, which may have tokens that others drafted. Returns how sure the model was
    // of it: its probability, before the chain where that leaves only one token.
    double draw(const DraftRequest & request, Proposal & out);
    // Decodes the next two tokens of the prompt as drafted ones are decoded, to see what that costs. The first decode
    // of a process is a slow one.
    void probe(const std::vector<int32_t> & history);
    // Tokens that have to be decoded before the next can be drawn, behind a sequence of this length.
    std::size_t missing(std::size_t sequence_size) const { return sequence_size - own_->tokens().size(); }
    std::size_t n_batch() const { return own_->decoder().n_batch(); }
    // What its decodes have cost is reported here.
    void report_to(CostModel * costs) { costs_ = costs; }

private:
    void save();
    void decode(const int32_t * tokens, std::size_t count, std::size_t first_output);

    std::shared_ptr<Sequence> own_;
    CostModel * costs_ = nullptr;
    std::size_t prompt_size_ = 0;
    double saving_seconds_ = 0.0;    // for the next decode, and part of what it costs
    std::vector<int32_t> sequence_;  // history and the tokens drafted so far
};

}  // namespace specllama
