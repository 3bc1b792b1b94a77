// The target's side of a round: the tokens that it decodes, the distributions p_1 .. p_{gamma+1} that follow, and the
// tokens that have to be decoded again after a rollback.
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
// also lacks the tokens of the last rounds: the next batch carries them. The next batch may also carry the end of a
// prompt; the first token is sampled from its last row then.
class Target {
public:
    Target(std::shared_ptr<Sequence> sequence, Decoding & decoding)
        : sequence_(std::move(sequence)), decoding_(decoding) {}

    Sequence & sequence() { return *sequence_; }
    const Sequence & sequence() const { return *sequence_; }
    const Decoder & decoder() const { return sequence_->decoder(); }

    // Starts a generation. `chain` makes distributions of the target's logits; `keeps_states` asks for hidden states.
    // Keeps the tokens that the memory has in common with `history`, and returns their number.
    std::size_t begin(const std::vector<int32_t> & history, SamplerChain chain, bool keeps_states);
    // Decodes one chunk of the history except its last token. Returns how many tokens it decoded: 0 if another text is
    // about to decode them. Returns nothing if no token is left to decode, or if `leaves_end` and a first round without
    // drafts can decode the tokens that are left.
    std::optional<std::size_t> prefill(const std::vector<int32_t> & history, bool leaves_end);
    // Brings the memory in step with the history after a rewind, an extension, or a failure.
    void settle(const std::vector<int32_t> & history);

    // Decodes [carried tokens, pending, d_1, .., d_gamma] with logits from pending on, then a drafter's branch rows.
    // `copies`: keeps a copy of the rows, because they may be read after another text has decoded. Returns the seconds
    // that the decode took.
    double decode(const std::vector<int32_t> & history, const std::vector<int32_t> & draft,
                  const std::vector<BranchRow> & branch_rows, bool copies);

    // How many branch rows fit into the next batch; none where other texts decode in it.
    std::size_t room_for_branches(const std::vector<int32_t> & history, std::size_t num_drafted) const;
    // The logits [n_vocab] of branch row i in the last decode.
    const float * branch_logits(std::size_t i) { return sequence_->logits(tokens_.size() + i); }

    // The hidden states [count][state_size] of the tokens that the last prefill() or decode() decoded, except tokens
    // that were carried after a rejection. Null if hidden states are not kept.
    const float * states() const { return states_.empty() ? nullptr : states_.data(); }
    // How many of these tokens, from the first on, have no hidden state.
    std::size_t num_without_states() const { return num_without_states_; }

    // The logits [n_vocab] of row i of the last decode: row 0 follows pending, row i follows d_i.
    float * row(std::size_t i);
    std::size_t num_rows() const { return num_rows_; }
    void forget_rows() { num_rows_ = 0; }

    // p_{i+1}, made from row i when it is first asked for, after p_1 .. p_i. The chain sees the tokens of `sequence`
    // from the prompt's end on; row 0 follows the first `before` tokens of `sequence`.
    const Distribution & p_at(std::size_t i, const std::vector<int32_t> & sequence, std::size_t prompt_size,
                              std::size_t before);
    // p[0 .. k) are the distributions that were asked for in this round; later entries are leftovers of earlier rounds.
    const std::vector<Distribution> & p() const { return p_; }

    // After a round: forgets the rejected tokens, or leaves this to the next round where the memory allows that.
    // Returns false if they cannot be forgotten.
    bool roll_back(const std::vector<int32_t> & history);
    // Forgets which tokens the next batch must carry: settle() compares the memory with the history instead.
    void forget_carried() { carry(0); }
    bool carries() const { return num_carried_ > 0; }
    // How many tokens of the prompt prefill() has left to the next batch.
    std::size_t num_left_of_prompt() const { return leaves_prompt_ ? num_carried_ : 0; }

    // Removes from the memory all that does not belong to this history.
    void finish(const std::vector<int32_t> & history);

    // How many drafted tokens fit into one batch.
    std::size_t room() const;

private:
    std::size_t most_carried() const;
    void carry(std::size_t count, bool of_prompt = false);
    void copy_rows();
    void copy_states(std::size_t first, std::size_t count, std::size_t without);

    std::shared_ptr<Sequence> sequence_;
    Decoding & decoding_;
    std::size_t num_carried_ = 0;  // tokens of history before pending that the next batch carries
    bool leaves_prompt_ = false;   // the carried tokens are the end of a prompt
    std::size_t num_held_ = 0;     // tokens that the memory held before the last batch
    std::vector<int32_t> tokens_;  // the tokens of the last batch
    std::size_t num_rows_ = 0;     // rows of logits that the last batch left
    std::size_t first_row_ = 0;    // index in tokens_ of the token with the first row
    std::vector<float> rows_;      // a copy of the rows, if one was asked for
    bool keeps_states_ = false;
    std::vector<float> states_;
    std::size_t num_without_states_ = 0;
    std::optional<SamplerChain> chain_;
    std::vector<Distribution> p_;  // the first num_known_ belong to this round
    std::size_t num_known_ = 0;
};

}  // namespace specllama
