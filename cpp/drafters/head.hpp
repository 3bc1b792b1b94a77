// A head: a layer that reads the target's hidden states (EAGLE-3, Li et al. 2025, arXiv 2503.01840; MTP, DeepSeek-V3,
// arXiv 2412.19437, section 2.2).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/drafter.hpp"
#include "drafters/kept_states.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

// An entry of the memory is made from a token and the target's state of the token before it. The memory holds such
// entries for a token of the text and all later ones. A drafted token has the head's own state instead: once it is
// accepted, it is decoded again with the target's state.
//
// Several MTP layers take turns: layer i draws the i-th token, and at most as many tokens are drawn as there are
// layers. Each layer has keys and values of its own, so each reads the text. For the i-th token, layer i reads all
// tokens drafted so far.
//
// There are no states for tokens that the target's memory held before: the head's text begins after them.
class HeadDrafter final : public DrawingDrafter {
public:
    // window: the most tokens of the text that the memory holds; 0: as many as the context has room for.
    HeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window);

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    void finish(const std::vector<int32_t> & history) override;
    bool needs_states() const override { return true; }
    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // 0 while the state of the last token but one is missing.
    std::size_t room() const override;
    std::size_t missing() const override { return num_tokens() - std::min(num_tokens(), own_->tokens().size()); }
    std::size_t n_batch() const override { return own_->decoder().n_batch(); }
    std::size_t catch_up() override;
    void probe() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return own_->decode_seconds(); }
    std::size_t num_decoded() const override { return own_->num_decoded(); }

private:
    // Length of the memory once it holds the whole text.
    std::size_t num_tokens() const { return tokens_.size(); }
    void forget(std::size_t unchanged);
    void restart(std::size_t begin);
    void decode_text(std::size_t count, bool draws);
    void decode_drafted(int32_t token);
    void decode_by_layer(std::size_t layer, const std::vector<int32_t> & drafted);
    bool has_several() const { return own_->decoder().num_layers() > 1; }
    void decode(const Sequence::Addition & addition);

    std::shared_ptr<Sequence> own_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t window_ = 0;
    std::size_t begin_ = 0;        // the memory's first token is the one after this position of the text
    std::vector<int32_t> tokens_;  // the text from there on, which the memory is to hold
    std::size_t num_true_ = 0;     // how many of these it holds with the target's states
    std::size_t size_ = 0;         // length of the whole text
    KeptStates kept_;
    std::vector<float> own_state_;  // the state of the token that was decoded last
    std::vector<float> chain_;      // with several layers: the states that the next layer reads beside the tokens
    std::size_t row_ = 0;           // the row of logits of the token that was decoded last
};

}  // namespace specllama
