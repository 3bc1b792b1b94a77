// A head that drafts several tokens in one decode (DFlash, arXiv 2602.06036; in DFlash2 and DSpark each token depends
// on the one before it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/reading_head.hpp"

namespace specllama {

// The head's memory holds keys and values made from the target's states. The input of a decode is the last token of the
// text, for which there is no state yet, and masks. This token and the masks see each other and the memory, and are
// removed from the memory right after the decode.
//
// The distribution of a place of the block depends on the text alone, or also on the token drafted at the place before
// (if NoiseBlock::num_candidates is above 0). Either way each drafted token has its distribution q.
class BlockHeadDrafter final : public ReadingHead {
public:
    // sequence: its decoder must be a head that has a block. n_ctx must be larger than the block, and n_batch must not
    // be smaller. window: the most tokens of the text that the memory holds; 0: as many as the context has room for,
    // beside a block.
    explicit BlockHeadDrafter(const std::shared_ptr<Sequence> & sequence, std::size_t window = 0);

    void observe(const DecodedBatch & batch) override;

    // Draws nothing after the end of the block.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // 0 while the target's state of the text's last token but one is missing.
    std::size_t room() const override { return is_ready() ? sequence().decoder().n_ctx() : 0; }
    std::size_t block() const override { return most_; }
    void probe() override;

protected:
    void read(std::size_t count) override;

private:
    void decode_block(std::size_t num_injected, std::size_t drafts);
    void decode_some(const Sequence::Addition & addition);
    float * logits_at(std::size_t place, const std::vector<int32_t> & drafted, std::size_t n);

    NoiseBlock noise_;
    std::size_t most_ = 0;  // the most tokens that a block drafts
    // The block of this round:
    std::vector<int32_t> tokens_;  // the tokens that the decode reads
    std::size_t num_said_ = 0;     // how many places the block drafts; 0: the block is not decoded yet
    std::size_t num_drawn_ = 0;    // places drawn from or passed over; never drawn from again: drawing changes logits
    std::size_t row_ = 0;          // index of the row of logits of the first place
    std::vector<float> said_;      // the head's states of the places, if these choose among candidates
    std::vector<float> scores_;    // [n_vocab], the logits of one place, made from its candidates' scores
};

}  // namespace specllama
