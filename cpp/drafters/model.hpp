// The papers' draft: a second, smaller model in a context of its own.
#pragma once

#include <memory>

#include "../context.hpp"
#include "../drafter.hpp"

namespace specllama {

class ModelDrafter final : public Drafter {
public:
    explicit ModelDrafter(std::shared_ptr<Context> context) : context_(std::move(context)) {}

    std::size_t room(std::size_t history_size) const override;
    void begin(const std::vector<int32_t> & history) override { context_->keep_common(history); }
    std::size_t prefill(const std::vector<int32_t> & history) override;
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> & history) override { context_->keep_common(history); }
    void rewind(std::size_t) override {}  // commit() compares
    double decode_seconds() const override { return context_->decode_seconds(); }
    std::size_t num_decoded() const override { return context_->num_decoded(); }

private:
    std::shared_ptr<Context> context_;
    std::vector<int32_t> sequence_;  // history and the tokens drafted so far
};

}  // namespace specllama
