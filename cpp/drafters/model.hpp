// The papers' draft: a second, smaller model with a decoder of its own.
#pragma once

#include <memory>

#include "drafters/drafter.hpp"
#include "llama/sequence.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

class ModelDrafter final : public DrawingDrafter {
public:
    explicit ModelDrafter(std::shared_ptr<Sequence> sequence)
        : DrawingDrafter(Source::model), own_(std::move(sequence)) {}

    std::vector<Sequence *> sequences() const override { return {own_.get()}; }
    void begin(const std::vector<int32_t> & history, const Task & task) override {
        decoding_ = &task.decoding;
        prompt_size_ = history.size();
        own_->keep_common(history);
    }
    void commit(const std::vector<int32_t> & history) override { own_->keep_common(history); }

    // How sure the model was of the token is its probability, before the chain where that leaves only one token.
    Expectation draw(const DraftRequest & request, std::size_t before, Proposal & out) override;
    std::size_t room(std::size_t history_size) const override;
    std::size_t missing(std::size_t sequence_size) const override { return sequence_size - own_->tokens().size(); }
    std::size_t n_batch() const override { return own_->decoder().n_batch(); }
    std::size_t prefill(const std::vector<int32_t> & history) override;
    // Two tokens: the first decode of a process is a slow one.
    void probe(const std::vector<int32_t> & history) override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return own_->decode_seconds(); }
    std::size_t num_decoded() const override { return own_->num_decoded(); }

private:
    void save();
    void decode(const int32_t * tokens, std::size_t count, std::size_t first_output);

    std::shared_ptr<Sequence> own_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t prompt_size_ = 0;
    double saving_seconds_ = 0.0;    // for the next decode, and part of what it costs
    std::vector<int32_t> sequence_;  // history and the tokens drafted so far
};

// A drawn token, by the probability that the model gave it.
Expectation model_expectation(double probability, std::size_t before);

}  // namespace specllama
