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

// Its memory holds, for a token of the text and for each one behind it, the token together with the target's state of
// the token before it. A drafted token has the head's own state instead: once it is accepted, it is decoded again with
// the target's.
//
// Several MTP layers take turns: layer i draws the i-th token, and no more tokens are drawn than there are layers. Each
// has keys and values of its own. So each reads the text, and for the i-th token layer i reads all drafted tokens.
//
// Of what the target had in its memory already there are no states: then the head's text begins behind that.
class HeadDrafter final : public DrawingDrafter {
public:
    // window: of the text it holds at most so many tokens; 0: as many as its context has room for.
    HeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window);

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    void finish(const std::vector<int32_t> & history) override;
    bool needs_states() const override { return true; }
    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // None while the state of the text's last token but one is not there.
    std::size_t room() const override;
    std::size_t missing() const override { return num_tokens() - std::min(num_tokens(), own_->tokens().size()); }
    std::size_t n_batch() const override { return own_->decoder().n_batch(); }
    std::size_t catch_up() override;
    void probe() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return own_->decode_seconds(); }
    std::size_t num_decoded() const override { return own_->num_decoded(); }

private:
    // Of the memory, once the whole text is in it.
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
    std::size_t begin_ = 0;        // the place of the text that the memory's first token comes behind
    std::vector<int32_t> tokens_;  // of the text behind it: what the memory is to hold
    std::size_t num_true_ = 0;     // of these it holds so many with the target's states
    std::size_t size_ = 0;         // of the text
    KeptStates kept_;
    std::vector<float> own_state_;  // of the token that was decoded last
    std::vector<float> chain_;      // with several layers: what the next one reads beside the tokens
    std::size_t row_ = 0;           // of logits, of the same token
};

}  // namespace specllama
