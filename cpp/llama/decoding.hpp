// What decodes for a text: the text's own call, or a scheduler that decodes for many texts in one batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "llama/sequence.hpp"

namespace specllama {

class Pace;

// One object for each text.
class Decoding {
public:
    Decoding() = default;
    virtual ~Decoding() = default;
    Decoding(const Decoding &) = delete;
    Decoding & operator=(const Decoding &) = delete;

    // Marks the calling thread as working for the text until the returned object is destroyed, at the end of the call.
    // Another caller that needs the same memory for itself gets BusyError.
    //
    // sequences: the sequences that the call may decode with.
    // under_way: whether the generation goes on. The variable is read again when the returned object is destroyed.
    // poll: called now and then during long work and long waits, and ends them by throwing. May be null.
    virtual std::shared_ptr<void> visit(const std::vector<Sequence *> & sequences, const bool & under_way,
                                        const std::function<void()> * poll) = 0;

    // Decodes one batch of one decoder. The batch's rows of logits stay valid until this text decodes again, or until
    // the object that visit() has returned is destroyed. Throws what Sequence::decode_together throws.
    virtual void decode(const Sequence::Addition & addition) = 0;

    // How many tokens of a prompt to decode at once.
    virtual std::size_t chunk(const Decoder & decoder) = 0;

    // To be called before a part of a prompt is decoded: takes over the cells that another text has of `history`.
    // Returns false if another text is about to decode the part. The caller then checks whether its text is still
    // wanted, and calls again.
    virtual bool share(Sequence & cache, const std::vector<int32_t> & history) = 0;

    // Notifies that the prompt is decoded and a round begins.
    virtual void begin_round() {}
    // Tells a pace what a batch of all texts costs.
    virtual void share_costs(Pace & /*pace*/) {}
};

// For a text that has its memory to itself.
class SingleText final : public Decoding {
public:
    std::shared_ptr<void> visit(const std::vector<Sequence *> & sequences, const bool & under_way,
                                const std::function<void()> * poll) override;
    void decode(const Sequence::Addition & addition) override { Sequence::decode_together(&addition, 1); }
    std::size_t chunk(const Decoder & decoder) override { return decoder.n_batch(); }
    bool share(Sequence &, const std::vector<int32_t> &) override { return true; }
};

// How many tokens of `history` the memory still lacks, not counting the last token of `history` (pending).
std::size_t tokens_to_prefill(const Sequence & sequence, const std::vector<int32_t> & history);

struct PromptPart {
    std::size_t left = 0;   // tokens of the prompt that the memory lacks
    std::size_t count = 0;  // of these, how many to decode next
};

// The part of a prompt to decode next. The memory must hold a prefix of history. `count` is 0 while another text is
// about to decode that part.
PromptPart next_prompt_part(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history);

// Decodes the next part, without logits. Returns how many tokens were decoded, and how many are left now.
PromptPart prefill_chunk(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history,
                         bool keeps_states = false);

}  // namespace specllama
