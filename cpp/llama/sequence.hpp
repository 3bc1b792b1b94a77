// One sequence of a decoder: which tokens the memory holds, and how the memory is rolled back to fewer tokens.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "llama/checkpoints.hpp"
#include "llama/decoder.hpp"

namespace specllama {

// Length of the common beginning of two texts.
inline std::size_t num_common(const std::vector<int32_t> & one, const std::vector<int32_t> & other) {
    const auto end = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    return static_cast<std::size_t>(end - one.begin());
}

class Sequence {
public:
    // `id`: its seq_id, below the n_seq_max of the llama_context. Throws std::invalid_argument if another Sequence has
    // this id.
    Sequence(std::shared_ptr<Decoder> decoder, int32_t id);
    ~Sequence() { decoder_->remove_sequence(id_); }
    Sequence(const Sequence &) = delete;
    Sequence & operator=(const Sequence &) = delete;

    Decoder & decoder() { return *decoder_; }
    const Decoder & decoder() const { return *decoder_; }

    int32_t id() const { return id_; }

    // The tokens whose keys and values the cache holds, from position 0. None for a head that reads its target's
    // memory: what it decodes stands behind all that this memory holds of the same seq_id, and leaves nothing there.
    const std::vector<int32_t> & tokens() const { return tokens_; }
    // The size of tokens(), for any thread: a scheduler may remove the tokens of a text that has ended.
    std::size_t num_tokens() const { return num_tokens_.load(std::memory_order_relaxed); }
    std::vector<int32_t> copy_tokens() const;

    // The memory's cells that hold the tokens, by numbers of our own. A cell that two sequences share has one number.
    const std::vector<std::uint64_t> & cells() const { return cells_; }

    // Sets which tokens the cache holds after other code has used the context. More entries may follow these tokens in
    // the cache.
    void assume(std::vector<int32_t> tokens);

    // How many tokens at the end a recurrent memory can forget now without a copy. Only one rollback can use this.
    std::size_t num_forgettable() const { return num_forgettable_ - padding_; }

    // Rolls back to the longest common prefix with `history` without its last token, whose logits are needed next.
    // Returns how many tokens are kept: fewer than the prefix, even 0, where the memory cannot be cut there.
    std::size_t keep_common(const std::vector<int32_t> & history);

    // Rolls back to `count` tokens, or to fewer where the memory cannot be cut there.
    void keep(std::size_t count);

    // Copies the state of a memory that cannot be cut, so that a later rollback can return here. Only the newest `most`
    // copies are kept, and one copy of the prompt.
    void save(std::size_t most) { save_recurrent(checkpoints_, most); }
    void save_prompt() { save_recurrent(prompt_, 1); }

    // The next place of `history` at which a memory that cannot be cut is to be copied, because a later text may go on
    // from there: before one of the last tokens that begin or end a message, because a chat is often told again without
    // the last answer's thoughts; and before the first one, because other chats may begin with the same message.
    // Nothing if there is no such place behind tokens().
    std::optional<std::size_t> next_mark(const std::vector<int32_t> & history) const;
    // Copies the state if the memory stands at such a place.
    void save_mark(const std::vector<int32_t> & history);

    // Parts of the memory as bytes, for a store that outlives the text: see Decoder::copy_range. Empty if the memory
    // does not hold the range, or llama.cpp cannot copy it.
    StateBytes copy_range(std::size_t first, std::size_t end);
    // Adds copied tokens behind the others. `data` may hold more tokens than these. Returns whether it succeeded; else
    // the memory holds what it held before, or nothing.
    bool put_range(const std::uint8_t * data, std::size_t size, const std::vector<int32_t> & tokens);
    // The state at a position; empty if there is no copy of it.
    StateBytes copy_point(std::size_t count);
    // Sets the state of this text, whose ranges are in the memory already, if the decoder copies ranges. Returns
    // whether it succeeded; else the memory is empty.
    bool put_point(const std::uint8_t * data, std::size_t size, const std::vector<int32_t> & tokens);
    // The positions at which copy_point() has something, without the end of the text.
    std::vector<std::size_t> copied_points() const;

    // Takes over what another sequence of the decoder holds of `history`, if that is more: its cells, and of a memory
    // that cannot be cut a copy of the state.
    void borrow(const std::vector<int32_t> & history);
    // Announces that this sequence is about to decode `history`, until drop_plan(). Returns false if it should wait:
    // another sequence is ahead and about to decode the part that this one needs next.
    bool plan(const std::vector<int32_t> & history);
    void drop_plan();

    // Tokens to be decoded after those that a sequence holds. The decode itself sets seq_id and position.
    struct Addition : BatchPart {
        Sequence * sequence = nullptr;
    };

    // Decodes additions to several sequences of one decoder in one batch of at most n_batch tokens; each sequence may
    // occur once. On failure every cache is restored to where it was, or emptied if that cannot be done. Throws
    // std::invalid_argument (token out of range), ContextFullError, DecodeError, and what a Use's `poll` threw.
    static void decode_together(const Addition * additions, std::size_t count);

    // Throws what decode_together() would throw for this addition, whatever else is in the batch.
    void refuse_bad(const Addition & addition) const;

    // Number of tokens decoded since this object was made. The seconds spent in llama_decode and in copying states are
    // decode_seconds(): a batch of several sequences is split equally among them.
    std::size_t num_decoded() const { return num_decoded_; }
    std::size_t num_borrowed() const { return num_borrowed_; }
    double decode_seconds() const { return decode_seconds_; }

    // The counters that must not grow when a paused text is decoded again, which is no work of a round or a prompt.
    struct Effort {
        std::size_t num_borrowed;
        double decode_seconds;
    };
    Effort effort() const { return {num_borrowed_, decode_seconds_}; }
    void set_effort(const Effort & effort) {
        num_borrowed_ = effort.num_borrowed;
        decode_seconds_ = effort.decode_seconds;
    }

    // The logits [n_vocab] of token number i of the last addition. The decoder's last batch must have held it.
    // Branch rows have the numbers after the tokens. Valid until the next batch.
    float * logits(std::size_t i) { return decoder_->logits(first_row_ + i); }
    // The hidden states of tokens of the last addition: see Decoder::copy_states.
    void copy_states(std::size_t first, std::size_t count, std::vector<float> & out) const {
        decoder_->copy_states(first_row_ + first, count, out);
    }

private:
    BatchPart part_of(const Addition & addition) const;
    bool is_behind(Sequence & other, const std::vector<int32_t> & history) const;
    void borrow_cells(const std::vector<int32_t> & history);
    void borrow_state(const std::vector<int32_t> & history);
    void took_over(const Sequence & other, const std::vector<int32_t> & history, std::size_t end);
    void drop_padding();
    void drop_snapshots();
    bool remove_behind(std::size_t count);
    void restore(std::size_t count);
    void shrink(std::size_t count);
    void count_tokens() { num_tokens_.store(tokens_.size(), std::memory_order_relaxed); }
    void number_cells();
    void save_recurrent(Checkpoints & checkpoints, std::size_t most);
    void save_to(Checkpoints & checkpoints, std::size_t most);
    std::vector<std::size_t> marks(const std::vector<int32_t> & history) const;
    const Checkpoint * latest(std::size_t count) const;
    void drop_copies_behind(std::size_t count);
    void take(const std::vector<int32_t> & tokens);
    bool stands_at_its_end();
    void clear();
    void added(const Addition & addition, std::size_t first_row, double seconds);
    void recover(int code);

    std::shared_ptr<Decoder> decoder_;
    int32_t id_;
    std::size_t num_forgettable_ = 0;
    std::vector<int32_t> tokens_;  // changed only while the decoder's memory_mutex() is locked
    std::atomic<std::size_t> num_tokens_{0};
    std::vector<std::uint64_t> cells_;
    std::vector<int32_t> plan_;       // see plan()
    std::uint64_t plan_turn_ = 0;     // number of the plan in its decoder; 0: no plan
    bool more_after_ = false;         // the cache may hold cells after tokens_
    std::size_t padding_ = 0;         // how many of these are the padding of the last batch
    std::size_t first_row_ = 0;       // the first row of this sequence's part in the last batch
    Checkpoints prompt_;              // the state after the prompt
    Checkpoints first_mark_;          // the state at the first mark: see next_mark()
    Checkpoints marks_;               // the states at the last marks
    Checkpoints wanted_;              // the states at places that other sequences have asked for
    std::vector<std::size_t> asked_;  // these places, of the plan
    Checkpoints checkpoints_;         // the states after other prefixes of tokens_
    std::size_t num_decoded_ = 0;
    std::size_t num_borrowed_ = 0;
    double decode_seconds_ = 0.0;
};

}  // namespace specllama
