// The target's side of a round: what it decodes, the distributions p_1 .. p_{gamma+1} that this leaves, and what a
// rollback leaves to be decoded again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "llama/decoding.hpp"
#include "math/sampler_chain.hpp"

namespace specllama {

// Between rounds the memory holds the history without its last token (`pending`). After a rejection a recurrent memory
// lacks the tokens of the last rounds, too: they are carried into the next batch. So is the end of a prompt, whose
// logits are those of the first token then.
class Target {
public:
    Target(std::shared_ptr<Sequence> sequence, Decoding & decoding)
        : sequence_(std::move(sequence)), decoding_(decoding) {}

    Sequence & sequence() { return *sequence_; }
    const Sequence & sequence() const { return *sequence_; }
    const Decoder & decoder() const { return sequence_->decoder(); }

    // A generation whose logits go through this chain, and whose hidden states are asked for or not. Keeps what the
    // memory has of `history`, and returns how many tokens that is.
    std::size_t begin(const std::vector<int32_t> & history, SamplerChain chain, bool keeps_states);
    // Decodes one chunk of the history, but for its last token. Returns how many tokens that was, none if another text
    // is about to decode them; nothing if none is left to decode, or `leaves_end` and what is left goes with a first
    // round that drafts nothing.
    std::optional<std::size_t> prefill(const std::vector<int32_t> & history, bool leaves_end);
    // Brings the memory in step with the history: after a rewind, an extension, or a failure.
    void settle(const std::vector<int32_t> & history);

    // [what is carried, pending, d_1, .., d_gamma], with logits from pending on; then what a drafter has asked for
    // beside the text. `copies`: the rows are looked at when another text may have decoded. Returns the seconds of it.
    double decode(const std::vector<int32_t> & history, const std::vector<int32_t> & draft,
                  const std::vector<BesideRow> & beside, bool copies);

    // How many rows beside these the next batch has room for: none where other texts decode in it, too.
    std::size_t room_beside(const std::vector<int32_t> & history, std::size_t num_drafted) const;
    // The logits [n_vocab] of row i beside the text, of the last decode.
    const float * beside(std::size_t i) { return sequence_->logits(tokens_.size() + i); }

    // The hidden states [count][state_size] of the tokens that prefill() or decode() has decoded last, without those
    // that were carried after a rejection; null if they are not kept.
    const float * states() const { return states_.empty() ? nullptr : states_.data(); }
    // So many of the first of these tokens have none.
    std::size_t num_without_states() const { return num_without_states_; }

    // The logits [n_vocab] from which token i behind the history is sampled.
    float * row(std::size_t i);
    std::size_t num_rows() const { return num_rows_; }
    void forget_rows() { num_rows_ = 0; }

    // p_{i+1}, from row i. The chain sees the tokens of `sequence` from the prompt's end on; the round's first row
    // comes behind `before` of its tokens. They are made in order, when they are asked for.
    const Distribution & p_at(std::size_t i, const std::vector<int32_t> & sequence, std::size_t prompt_size,
                              std::size_t before);
    // Those that were asked for in this round; behind them, others.
    const std::vector<Distribution> & p() const { return p_; }

    // After a round: forgets what was rejected, or leaves that to the next round where a memory can. Whether it could
    // be forgotten.
    bool roll_back(const std::vector<int32_t> & history);
    // Nothing is known of what the next batch must bring back: settle() looks at what the memory holds.
    void forget_carried() { carry(0); }
    bool carries() const { return num_carried_ > 0; }
    // How many tokens prefill() has left to the next batch.
    std::size_t num_left_of_prompt() const { return leaves_prompt_ ? num_carried_ : 0; }

    // Leaves nothing in the memory that is not of this history.
    void finish(const std::vector<int32_t> & history);

    // How many tokens can be drafted for one batch.
    std::size_t room() const;

private:
    std::size_t most_carried() const;
    void carry(std::size_t count, bool of_prompt = false);
    void copy_rows();
    void copy_states(std::size_t first, std::size_t count, std::size_t without);

    std::shared_ptr<Sequence> sequence_;
    Decoding & decoding_;
    std::size_t num_carried_ = 0;  // tokens of history before pending that the next batch has, too
    bool leaves_prompt_ = false;   // they have not been decoded before
    std::size_t num_held_ = 0;     // tokens that the memory held before the last batch
    std::vector<int32_t> tokens_;  // of the last batch
    std::size_t num_rows_ = 0;     // of logits that it left
    std::size_t first_row_ = 0;    // which token of it has the first of them
    std::vector<float> rows_;      // a copy of them
    bool keeps_states_ = false;
    std::vector<float> states_;
    std::size_t num_without_states_ = 0;
    std::optional<SamplerChain> chain_;
    std::vector<Distribution> p_;  // the first num_known_ are those of this round
    std::size_t num_known_ = 0;
};

}  // namespace specllama
