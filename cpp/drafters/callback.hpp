// A drafter that is a function of the caller's: history and gamma in, tokens and their q out. Costs no decode.
#pragma once

#include <functional>

#include "../drafter.hpp"

namespace specllama {

class CallbackDrafter final : public Drafter {
public:
    // Appends at most request.gamma tokens to an empty proposal. What it says of q is believed: each token must have
    // been drawn from its q, or from nothing but the history with a q of one token.
    using Propose = std::function<void(const DraftRequest & request, Proposal & out)>;

    explicit CallbackDrafter(Propose propose) : propose_(std::move(propose)) {}

    std::size_t room(std::size_t) const override { return static_cast<std::size_t>(-1); }
    void begin(const std::vector<int32_t> &, const Task &) override {}
    std::size_t prefill(const std::vector<int32_t> &) override { return 0; }
    // Throws std::invalid_argument for a proposal that is not one; nothing of it is kept then.
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> &) override {}
    void rewind(std::size_t) override {}
    double decode_seconds() const override { return 0.0; }
    std::size_t num_decoded() const override { return 0; }

private:
    Propose propose_;
};

}  // namespace specllama
