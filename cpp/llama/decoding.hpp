// Who decodes for a text: the text alone, or somebody who decodes for many texts in one batch.
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

    // The calling thread works for the text until what is returned is gone: the length of one call. Whoever else wants
    // to use the same memory alone gets BusyError.
    //
    // sequences: those that the call may decode with.
    // under_way: whether the generation goes on. It is read at the end, too.
    // poll: called now and then during long work and long waits. What it throws ends these. May be null.
    virtual std::shared_ptr<void> visit(const std::vector<Sequence *> & sequences, const bool & under_way,
                                        const std::function<void()> * poll) = 0;

    // Decodes one batch of one decoder. Its rows of logits stay until this text decodes again or its visit ends. Throws
    // what Sequence::decode_together throws.
    virtual void decode(const Sequence::Addition & addition) = 0;

    // How many tokens of a prompt to decode at once.
    virtual std::size_t chunk(const Decoder & decoder) = 0;

    // Before a part of a prompt is decoded: takes over what another text holds of `history`. False: another text is
    // about to decode it. Then the caller asks again, once it has looked at whether anybody still wants this text.
    virtual bool share(Sequence & own, const std::vector<int32_t> & history) = 0;

    // What follows takes long and does not decode: other texts need not wait for this one, whose rows of logits may go.
    virtual void step_aside() {}
    // The opposite, if it has stepped aside. Its memory may have to be decoded anew.
    virtual void come_back() {}
    // A round begins: the prompt is decoded.
    virtual void begin_round() {}
    // What a batch of all texts costs, for one that decides how much to draft.
    virtual void share_costs(Pace & /*pace*/) {}
};

// Nobody else decodes in the same memory.
class Alone final : public Decoding {
public:
    std::shared_ptr<void> visit(const std::vector<Sequence *> & sequences, const bool & under_way,
                                const std::function<void()> * poll) override;
    void decode(const Sequence::Addition & addition) override { Sequence::decode_together(&addition, 1); }
    std::size_t chunk(const Decoder & decoder) override { return decoder.n_batch(); }
    bool share(Sequence &, const std::vector<int32_t> &) override { return true; }
};

// How many tokens of `history` the memory still lacks. The last one (pending) is not among them.
std::size_t tokens_to_prefill(const Sequence & sequence, const std::vector<int32_t> & history);

struct PromptPart {
    std::size_t left = 0;   // tokens of the prompt that the memory lacks
    std::size_t count = 0;  // of these, how many to decode next
};

// What to decode next of a prompt. The memory must hold a prefix of history. Nothing is decoded, for now, of what
// another text is about to decode.
PromptPart next_prompt_part(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history);

// Decodes it, without logits. Returns how many tokens were decoded, and how many are left then.
PromptPart prefill_chunk(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history,
                         bool keeps_states = false);

}  // namespace specllama
