// One llama_context: its batch, the logits of the last batch, the time that decoding took, and how its memory is rolled
// back.
//
// A decoder does not know which tokens the memory holds: its sequences do (sequence.hpp). Decoder and Sequence are the
// callers of LlamaApi.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "llama/batch.hpp"
#include "llama/head_inputs.hpp"
#include "llama/interruption.hpp"
#include "llama/llama_api.hpp"

namespace specllama {

class Sequence;

// How a memory goes back to an earlier position.
enum class Rollback {
    none,            // recurrent, and this llama.cpp cannot copy its state: all is decoded again
    seq_rm,          // a KV cache: its last cells are removed
    sliding_window,  // a KV cache, too, but it can go back only as far as the window reaches
    snapshot,        // recurrent or hybrid, n_rs_seq > 0: llama.cpp keeps the states after the last batch's tokens
    checkpoint,      // recurrent or hybrid: a copy of the state is restored, and later tokens are decoded again
};

// Whether a decode skips the logits that are not wanted.
enum class Skipping { unknown, no, yes };

// Bytes that llama.cpp has written.
struct StateBytes {
    std::unique_ptr<std::uint8_t[]> data;
    std::size_t size = 0;
};

// What a context has besides its texts' own memory.
struct ContextExtras {
    // A seq_id that no text has: parts of a memory are copied by it. Negative: there is none.
    int32_t spare = -1;
    // A model with a sliding window keeps the cells outside the window, too (swa_full).
    bool keeps_window = false;
    // llama.cpp can copy a part of a sequence. Otherwise it ends the process where that is tried.
    bool has_parts = true;
};

class Decoder {
public:
    // `name`: "target" or "draft", for messages. `n_ctx`: the most tokens of one sequence; 0: as many as the memory has
    // cells. `embeds`: the context also computes embeddings. Throws std::invalid_argument for a context without a KV
    // cache (an embedding model).
    Decoder(std::shared_ptr<const LlamaApi> api, llama_context * context, std::string name, std::size_t n_ctx = 0,
            HiddenStates hidden = {}, bool embeds = false, ContextExtras extras = {});
    Decoder(const Decoder &) = delete;
    Decoder & operator=(const Decoder &) = delete;

    const std::string & name() const { return name_; }
    std::size_t n_ctx() const { return n_ctx_; }
    // How many tokens the memory can hold, of all sequences together.
    std::size_t num_cells() const { return num_cells_; }
    std::size_t n_batch() const { return n_batch_; }
    std::size_t n_vocab() const { return n_vocab_; }
    bool is_eog(int32_t token) const;
    // Whether the token is one of those that structure a text, such as the beginning of a message.
    bool is_control(int32_t token) const;

    Rollback rollback() const { return rollback_; }
    bool is_recurrent() const { return rollback_ != Rollback::seq_rm && rollback_ != Rollback::sliding_window; }
    // Whether a copy of the state is needed to go back far: a recurrent state, or a window that has moved on.
    bool needs_marks() const {
        return can_copy_ && (rollback_ == Rollback::sliding_window ? !extras_.keeps_window : is_recurrent());
    }
    // Whether parts of a text's memory can be copied, and not only the whole of it.
    bool copies_ranges() const {
        return can_copy_ && extras_.spare >= 0 && extras_.has_parts && !is_pure_recurrent_ && splits_states_;
    }
    // Whether what copy_state() copies is what copy_point() copies.
    bool copies_partly() const { return copies_ranges() || is_pure_recurrent_; }
    // Whether ranges have all keys and values: there is no window, or all of it is kept.
    bool has_whole_ranges() const {
        return rollback_ == Rollback::seq_rm || (rollback_ == Rollback::sliding_window && extras_.keeps_window);
    }
    // Whether a copied text also needs the state at its end: its ranges lack recurrent states, or windows.
    bool needs_points() const { return !copies_ranges() || !has_whole_ranges(); }
    bool can_copy() const { return can_copy_ && rollback_ != Rollback::none; }
    // How many tokens at the end of a batch a recurrent memory can forget without a copy; never the batch's first
    // token.
    std::size_t num_snapshots() const { return num_snapshots_; }

    // Whether several sequences can be decoded together.
    bool holds_several() const { return rollback_ != Rollback::none; }
    // Whether the parts of a batch must have equal lengths. llama.cpp decodes recurrent memories of several sequences
    // in passes of as many tokens of each. Only the last pass leaves snapshots.
    bool wants_equal_lengths() const { return num_snapshots_ > 0; }
    // Whether sequences can share the cells of a common beginning, from any place on. Cells that a window has left
    // behind are free for other sequences unless two share them, so they would fill a memory that keeps windows only.
    bool shares_cells() const { return has_whole_ranges(); }
    // Whether sequences can share a beginning at the end of which one of them has a copy of its state.
    bool shares_states() const { return is_recurrent() && extras_.has_parts; }

    // Throws std::invalid_argument for a batch that would fail a GGML_ASSERT, which would end the process.
    void refuse_bad_batch(const BatchPart * parts, std::size_t num_parts) const;

    // Decodes the parts in one batch, one after the other. Returns the code of llama_decode. Unless it is 0, the memory
    // may hold a part of the batch.
    int32_t decode(const BatchPart * parts, std::size_t num_parts);

    // Whether logits that are not wanted are skipped. It is known after the first batch that wants only some logits. If
    // it is `yes`, the rows of such a batch hold only the wanted logits.
    Skipping skipping() const { return skipping_; }

    // The logits [n_vocab] of token number i of the last batch. Valid until the next batch.
    float * logits(std::size_t i);

    // Whether this is a head, which cannot decode tokens without another model's hidden states.
    bool is_head() const { return hidden_.n_features > 0; }
    std::size_t n_features() const { return hidden_.n_features; }
    const std::optional<NoiseBlock> & noise_block() const { return hidden_.block; }
    std::size_t num_layers() const { return hidden_.choose_layer == nullptr ? 1 : hidden_.num_layers; }
    // Whether hidden states exist only for tokens whose logits are wanted.
    bool gives_of_wanted() const { return hidden_.of_wanted; }
    std::size_t state_size() const { return hidden_.size(); }
    // Appends the hidden states [count][state_size] of the last batch's tokens from number `first` on, if the batch
    // kept them. Throws DecodeError if llama.cpp does not show them.
    void copy_states(std::size_t first, std::size_t count, std::vector<float> & out) const;

    // Number of tokens decoded since this object was made.
    std::size_t num_decoded() const { return num_decoded_; }
    // Whether the time of the last batch is typical: the first batch takes longer, on a GPU many times as long.
    bool was_warm() const { return num_batches_ > 1; }

    // Whether the logits of a token have not depended, even in the last bit, on the other tokens of its batch; false
    // before the first decode. This needs a single text in a memory whose cells are in the order of the text's tokens.
    // Cells that a window has left behind are taken for new tokens, in any order, unless all of the window is kept.
    bool is_batch_invariant() const {
        return saw_ours_ && !saw_foreign_ && (n_swa_ == 0 || extras_.keeps_window) && sequences_.size() <= 1;
    }

    bool is_open() const { return context_ != nullptr; }
    // Whether a Use of the decoder exists.
    bool is_in_use() const { return in_use_; }
    void require_open() const;

    // Forgets the llama_context, which its owner is about to free.
    void close() {
        const std::lock_guard lock(memory_mutex());
        context_ = nullptr;
    }

    // Whether several texts decode with this decoder together, each in a thread of its own.
    bool is_shared() const { return is_shared_; }
    void set_shared(bool is_shared) { is_shared_ = is_shared; }

    // Whether this is a head that reads its target's memory, and writes none.
    bool reads_target() const { return hidden_.target != nullptr; }
    // The decoder that has the memory.
    Decoder & with_memory() { return reads_target() ? *hidden_.target : *this; }

    // Locked while the memory, or a sequence's record of it, is changed, or is read by another thread.
    std::recursive_mutex & memory_mutex() { return with_memory().memory_mutex_; }

    // The following functions are for class Sequence, which knows when they may be called.

    // Removes the cells from position `count` on. Returns whether they are gone, and all cells that the next token
    // needs are still there.
    bool remove_behind(int32_t sequence, std::size_t count);
    // Empties the sequence's memory.
    void clear(int32_t sequence);
    // How many tokens of the sequence all parts of the memory have seen.
    std::size_t memory_end(int32_t sequence) const;
    // Copies the part of the state that remove_behind() cannot cut. Returns whether it succeeded.
    bool copy_state(int32_t sequence, std::vector<std::uint8_t> & state);
    bool restore_state(int32_t sequence, const std::vector<std::uint8_t> & state);

    // Copies what a memory of keys and values holds of the positions [first, end). Empty if llama.cpp cannot do it.
    StateBytes copy_range(int32_t sequence, std::size_t first, std::size_t end);
    // Puts a copied range, or the part of it before `end`, behind a sequence that holds the positions before `first`.
    // Returns whether it succeeded; else the memory may hold a part.
    bool put_range(int32_t sequence, const std::uint8_t * data, std::size_t size, std::size_t first, std::size_t end);
    // Copies the state after the sequence's last position: what ranges do not hold of it, or, if there are no ranges,
    // all of it.
    StateBytes copy_point(int32_t sequence);
    bool put_point(int32_t sequence, const std::uint8_t * data, std::size_t size);

    // Whether all cells of a sequence are there, from the place `first` on; true where there is no window.
    bool has_cells_from(int32_t sequence, std::size_t first) const;
    // Whether all that the token after `count` others reads is there.
    bool window_is_whole(int32_t sequence, std::size_t count) const;
    // Shares cells: the cells of `other` at the positions [first, end) then belong to `sequence`, too. Returns whether
    // all that the next token needs is there. Only for a memory that all sequences share.
    bool share(int32_t other, int32_t sequence, std::size_t first, std::size_t end);
    // The same, for a memory that cannot be cut, of which there is a copy at `end`.
    bool share(int32_t other, int32_t sequence, std::size_t first, std::size_t end,
               const std::vector<std::uint8_t> & state);

    // Registers a sequence of this memory. Throws std::invalid_argument if another one has its seq_id.
    void add_sequence(int32_t id, Sequence * sequence);
    void remove_sequence(int32_t id);
    const std::map<int32_t, Sequence *> & sequences() const { return sequences_; }  // by seq_id
    std::uint64_t next_cell() { return num_cells_filled_++; }
    std::uint64_t next_plan() { return ++num_plans_; }  // from 1

    // After a decode that returned 2: rethrows the exception of `poll` that ended the decode, if there is one.
    void raise_interruption() { interruption_->raise(); }
    // Sets `poll` (see Use), for a scheduler.
    void ask(const std::function<void()> * poll) { interruption_->ask(poll); }

    // Marks the decoder as in use: another thread that wants it gets BusyError. `poll` is called now and then during a
    // decode on a CPU; if it throws, the decode ends and the caches are restored as after any failure. If the decoder
    // is shared, many threads may use it, and `poll` is not called.
    class Use {
    public:
        explicit Use(Decoder & decoder, const std::function<void()> * poll = nullptr);
        ~Use();
        Use(const Use &) = delete;
        Use & operator=(const Use &) = delete;

    private:
        Decoder * decoder_;  // null if it is shared
    };

private:
    std::size_t snapshots_of_context() const;
    Rollback way_back() const;
    bool is_hybrid() const;
    StateBytes state_of(int32_t sequence, std::uint32_t flags);
    std::size_t piece_end(std::size_t first, std::size_t end) const;
    bool set_range(int32_t sequence, const std::uint8_t * data, std::size_t size, std::size_t first, std::size_t end);
    // Empties the spare sequence when it is destroyed, also if memory for a copy has run out.
    class SpareInUse {
    public:
        explicit SpareInUse(Decoder & decoder) : decoder_(decoder) {}
        ~SpareInUse() { decoder_.api_->llama_memory_seq_rm(decoder_.memory_, decoder_.extras_.spare, -1, -1); }
        SpareInUse(const SpareInUse &) = delete;
        SpareInUse & operator=(const SpareInUse &) = delete;

    private:
        Decoder & decoder_;
    };
    void lay_out(const BatchPart * parts, std::size_t num_parts);
    void lay_out_branches(const BatchPart & part);
    int32_t decode_in_branches(const llama_batch & batch, const BatchPart & part);
    int32_t decode_in_layers(const llama_batch & batch, const BatchPart * parts, std::size_t num_parts);
    void sort_rows();
    std::size_t row_of(std::size_t token, std::size_t num_rows) const;
    std::size_t place_in_batch(std::size_t token) const { return hidden_.block ? places_.at(token) : token; }

    std::shared_ptr<const LlamaApi> api_;
    llama_context * context_;
    std::string name_;
    const llama_vocab * vocab_;
    llama_memory_i * memory_;
    std::size_t num_cells_;
    std::size_t n_ctx_;
    std::size_t n_vocab_;
    std::size_t n_swa_;
    std::size_t n_batch_;
    std::size_t num_snapshots_;
    HiddenStates hidden_;
    bool embeds_;
    ContextExtras extras_;
    bool can_copy_;
    Rollback rollback_;
    bool is_pure_recurrent_;
    bool splits_states_ = true;  // false once llama.cpp has written a state that is built in an unknown way
    HeadInputs inputs_;
    std::map<int32_t, Sequence *> sequences_;  // by seq_id
    std::uint64_t num_cells_filled_ = 0;
    std::uint64_t num_plans_ = 0;
    std::size_t num_decoded_ = 0;
    std::size_t num_batches_ = 0;
    bool is_shared_ = false;
    std::recursive_mutex memory_mutex_;
    std::atomic<bool> saw_ours_{false};  // see OperationsSeen; other threads read both during a decode
    std::atomic<bool> saw_foreign_{false};
    std::atomic<Skipping> skipping_{Skipping::unknown};
    std::atomic<bool> in_use_{false};
    // Never freed: the llama_context keeps the address of the Interruption, and may live longer than this object.
    Interruption * interruption_ = nullptr;

    // The arrays of the llama_batch, kept from decode to decode.
    std::vector<int32_t> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequence_counts_;
    std::vector<int32_t> sequence_ids_;
    std::vector<int32_t> branch_ids_;  // the part's seq_id, then those of the branches
    std::vector<int32_t *> sequence_pointers_;
    std::vector<int8_t> outputs_;
    std::vector<std::size_t> places_;  // by token of the parts: its index in the batch, which has no injected tokens
};

}  // namespace specllama
