// A head that drafts several tokens in one decode (DFlash, arXiv 2602.06036; in DFlash2 and DSpark each token depends
// on the one before it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/drafter.hpp"
#include "drafters/kept_states.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

// The memory holds keys and values made from the target's states, for a token of the text and all later ones. The input
// is the last token of the text, which has no state yet, and masks. They see each other and the memory, and are removed
// at once.
//
// The distribution of a place depends on the text alone, or also on the token drafted before it
// (NoiseBlock::num_candidates). Either way each token has its q.
class BlockHeadDrafter final : public DrawingDrafter {
public:
    // window: the most tokens of the text that the memory holds; 0: as many as the context has room for, beside a
    // block.
    BlockHeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window);

    void begin(const Task & task) override { decoding_ = &task.decoding; }
    void observe(const DecodedBatch & batch) override;
    bool needs_states() const override { return true; }
    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    // Draws nothing after the end of the block.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // 0 while the state of the last token but one is missing.
    std::size_t room() const override;
    std::size_t missing() const override;
    std::size_t n_batch() const override { return own_->decoder().n_batch(); }
    std::size_t block() const override { return most_; }
    std::size_t catch_up() override;
    void probe() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return own_->decode_seconds(); }
    std::size_t num_decoded() const override { return own_->num_decoded(); }

private:
    std::size_t num_held() const { return own_->tokens().size(); }
    void restart(std::size_t begin);
    void inject(std::size_t count);
    void decode_block(std::size_t num_injected, std::size_t drafts);
    void decode(const Sequence::Addition & addition);
    float * logits_at(std::size_t place, const std::vector<int32_t> & drafted, std::size_t n);

    std::shared_ptr<Sequence> own_;
    NoiseBlock noise_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t most_ = 0;  // how many tokens of a block are drafts
    std::size_t window_ = 0;
    std::size_t begin_ = 0;      // the text's position where the memory begins
    std::vector<int32_t> text_;  // the text from there on
    std::size_t size_ = 0;       // length of the whole text
    KeptStates kept_;
    // The block of this round:
    std::vector<int32_t> tokens_;  // the tokens of its decode
    std::size_t num_said_ = 0;     // places that it drafts; 0: the block is not decoded
    std::size_t num_drawn_ = 0;    // places that were drawn from, or passed over: their logits are changed
    std::size_t row_ = 0;          // row of logits of its first draft
    std::vector<float> said_;      // if places choose among candidates: their states
    std::vector<float> scores_;    // [n_vocab], the logits of one place made from its candidates
};

}  // namespace specllama
