// One sequence of a decoder: the tokens that the memory holds of it, and how it goes back to fewer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llama/checkpoints.hpp"
#include "llama/decoder.hpp"

namespace specllama {

// How many tokens two texts have in common at their beginnings.
inline std::size_t num_common(const std::vector<int32_t> & one, const std::vector<int32_t> & other) {
    const auto end = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    return static_cast<std::size_t>(end - one.begin());
}

class Sequence {
public:
    // `id`: its seq_id, below the n_seq_max of the llama_context. Throws std::invalid_argument if another Sequence has
    // it.
    Sequence(std::shared_ptr<Decoder> decoder, int32_t id);
    ~Sequence() { decoder_->remove_sequence(id_); }
    Sequence(const Sequence &) = delete;
    Sequence & operator=(const Sequence &) = delete;

    Decoder & decoder() { return *decoder_; }
    const Decoder & decoder() const { return *decoder_; }

    int32_t id() const { return id_; }

    // The tokens whose keys and values the cache holds, from position 0.
    const std::vector<int32_t> & tokens() const { return tokens_; }
    // The same for a thread that has no part in it: a scheduler may take them from a text that has ended.
    std::size_t num_tokens() const { return num_tokens_.load(std::memory_order_relaxed); }
    std::vector<int32_t> copy_tokens() const;

    // Which cells of the decoder's memory hold them, by numbers of our own: what two sequences share has the same ones.
    const std::vector<std::uint64_t> & cells() const { return cells_; }

    // Says what the cache holds after somebody else used the context. It may hold more after them.
    void assume(std::vector<int32_t> tokens);

    // How many tokens at its end a recurrent memory can forget now without a copy. One rollback uses them up.
    std::size_t num_forgettable() const { return num_forgettable_; }

    // Rolls back to the longest common prefix with `history`, but for its last token (whose logits are needed next).
    // Returns how many tokens are kept: fewer than that, even 0, where the memory cannot be cut there.
    std::size_t keep_common(const std::vector<int32_t> & history);

    // Rolls back to at most `count` tokens: to fewer where the memory cannot be cut there.
    void keep(std::size_t count);

    // A rollback to here may follow: copies the state of a memory that cannot be cut. At most `most` copies are kept,
    // the newest ones, and one of the prompt besides.
    void save(std::size_t most) { save_to(checkpoints_, most); }
    void save_prompt() { save_to(prompt_, 1); }

    // Makes what another sequence of the decoder holds of `history`, beyond what this one does, this one's, too.
    void borrow(const std::vector<int32_t> & history);
    // This one is about to decode `history`, until the plan is dropped. False: not yet, since another sequence is about
    // to decode what this one needs next of it, and is ahead.
    bool plan(const std::vector<int32_t> & history);
    void drop_plan();

    // Tokens to be decoded after those that a sequence holds, with logits for those from `first_output` on.
    struct Addition {
        Sequence * sequence = nullptr;
        const int32_t * tokens = nullptr;  // [count]
        std::size_t count = 0;
        std::size_t first_output = 0;
        const TokenList * listed = nullptr;               // logits are wanted of these alone; null: of all
        const float * features = nullptr;                 // of a head: see BatchPart
        const float * states = nullptr;                   // the same
        bool keeps_states = false;                        // copy_states() is called
        std::size_t num_injected = 0;                     // see BatchPart
        const std::vector<BesideRow> * beside = nullptr;  // the same
        int32_t layer = 0;                                // the same
    };

    // Decodes what is added to several sequences of one decoder in one batch of at most n_batch tokens; each sequence
    // once. On failure every cache is put back to where it was, or emptied if that cannot be done. Throws
    // std::invalid_argument (token out of range), ContextFullError, DecodeError, and what ended a decode
    // (Decoder::Use).
    static void decode_together(const Addition * additions, std::size_t count);

    // Throws what decode_together() would for these tokens, whatever is decoded beside them.
    void refuse_bad(const Addition & addition) const;

    // Tokens decoded, and seconds spent in llama_decode and in copying states, since the beginning. Of a batch of
    // several sequences each has an equal part of the time.
    std::size_t num_decoded() const { return num_decoded_; }
    // Tokens that were borrowed.
    std::size_t num_borrowed() const { return num_borrowed_; }
    double decode_seconds() const { return decode_seconds_; }

    // What of this would be taken for a round's, or a prompt's, if the sequence is decoded anew in between.
    struct Effort {
        std::size_t num_borrowed;
        double decode_seconds;
    };
    Effort effort() const { return {num_borrowed_, decode_seconds_}; }
    void set_effort(const Effort & effort) {
        num_borrowed_ = effort.num_borrowed;
        decode_seconds_ = effort.decode_seconds;
    }

    // The logits [n_vocab] of token number i of what was added by the last decode, which must have been of this
    // sequence, too. Rows beside have the numbers behind. Valid until the next one.
    float * logits(std::size_t i) { return decoder_->logits(first_row_ + i); }
    // The same for hidden states: see Decoder::copy_states.
    void copy_states(std::size_t first, std::size_t count, std::vector<float> & out) const {
        decoder_->copy_states(first_row_ + first, count, out);
    }

private:
    BatchPart part_of(const Addition & addition) const;
    bool is_behind(const Sequence & other, const std::vector<int32_t> & history) const;
    bool remove_behind(std::size_t count);
    void restore(std::size_t count);
    void shrink(std::size_t count);
    void count_tokens() { num_tokens_.store(tokens_.size(), std::memory_order_relaxed); }
    void number_cells();
    void save_to(Checkpoints & checkpoints, std::size_t most);
    void clear();
    void added(const Addition & addition, std::size_t first_row, double seconds);
    void recover(int code);

    std::shared_ptr<Decoder> decoder_;
    int32_t id_;
    std::size_t num_forgettable_ = 0;
    std::vector<int32_t> tokens_;  // changed under the decoder's memory_mutex() alone
    std::atomic<std::size_t> num_tokens_{0};
    std::vector<std::uint64_t> cells_;
    std::vector<int32_t> plan_;    // see plan()
    std::uint64_t plan_turn_ = 0;  // which plan of the decoder's it is; 0: none
    bool more_after_ = false;      // the cache may hold cells after tokens_
    std::size_t first_row_ = 0;    // of its part in the last batch
    Checkpoints prompt_;           // these, too, are of prefixes of tokens_
    Checkpoints checkpoints_;
    std::size_t num_decoded_ = 0;
    std::size_t num_borrowed_ = 0;
    double decode_seconds_ = 0.0;
};

}  // namespace specllama
