// A head that says several tokens in one decode (DFlash, arXiv 2602.06036; DFlash2 and DSpark chain what it says).
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

// Its memory holds keys and values that it makes of the target's states: of a token of the text, and of each one behind
// it. What it reads is the last token of the text, of which there is no state yet, and masks. These see each other and
// the memory, and are forgotten at once.
//
// What is said of a place depends on the text alone, or on the token drafted before it too (NoiseBlock::
// num_candidates): so each token has its q.
class BlockHeadDrafter final : public DrawingDrafter {
public:
    // window: of the text it holds at most so many tokens; 0: as many as its context has room for, beside a block.
    BlockHeadDrafter(std::shared_ptr<Sequence> sequence, std::size_t window);

    void begin(const Task & task) override { decoding_ = &task.decoding; }
    void observe(const DecodedBatch & batch) override;
    bool needs_states() const override { return true; }
    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    // Nothing behind the block.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // None while the state of the text's last token but one is not there.
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
    std::size_t most_ = 0;  // tokens of a block that are drafts
    std::size_t window_ = 0;
    std::size_t begin_ = 0;      // the place of the text that the memory begins with
    std::vector<int32_t> text_;  // from there on
    std::size_t size_ = 0;       // of the whole text
    KeptStates kept_;
    // The block of this round.
    std::vector<int32_t> tokens_;  // what its decode was given
    std::size_t num_said_ = 0;     // places behind the text that it says something of; 0: it is not decoded
    std::size_t num_drawn_ = 0;    // places of them that were drawn from, or passed over: their logits have changed
    std::size_t row_ = 0;          // of logits, of the first
    std::vector<float> said_;      // of each place: its state, where it chooses among candidates
    std::vector<float> scores_;    // [n_vocab], of one of these
};

}  // namespace specllama
