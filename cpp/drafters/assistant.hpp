// An assistant: a head that reads the target's memory (Gemma 4's; llama.cpp's common/speculative.cpp feeds it alike).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/last_state.hpp"
#include "llama/sequence.hpp"

namespace specllama {

// The assistant's layers have queries only. They look at the keys and values of the target's last two layers, and leave
// none. The first token of a draft comes of the text's last token with the target's state of the token before. Each
// further one comes of the token drafted before with the assistant's own state of it. All of them have the position of
// the text's last token: the assistant was trained so.
class AssistantDrafter final : public LastStateHead {
public:
    // sequence: of a decoder that reads its target's memory. Its seq_id is that of the text there.
    explicit AssistantDrafter(std::shared_ptr<Sequence> sequence);

    void begin(const Task & task) override { decoding_ = &task.decoding; }
    void observe(const DecodedBatch & batch) override;
    std::vector<Sequence *> sequences() const override { return {sequence_.get()}; }

    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    std::size_t n_batch() const override { return sequence_->decoder().n_batch(); }
    double decode_seconds() const override { return sequence_->decode_seconds(); }
    std::size_t num_decoded() const override { return sequence_->num_decoded(); }

private:
    void decode(std::int32_t token, const float * state);

    std::shared_ptr<Sequence> sequence_;
    Decoding * decoding_ = nullptr;  // of this generation
    std::size_t num_read_ = 0;       // tokens decoded in this round: the text's last one, and drafted ones
    std::vector<float> own_state_;   // of the last of them
};

}  // namespace specllama
