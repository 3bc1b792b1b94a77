// One llama_context: its batch, the logits of the last one, what decoding took, what its memory can do.
//
// It knows no tokens of the past: those are the sequences' (sequence.hpp). It and they are the callers of LlamaApi.
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

#include "llama/interruption.hpp"
#include "llama/llama_api.hpp"
#include "llama/taps.hpp"
#include "math/token_list.hpp"

namespace specllama {

class Sequence;

// How a memory goes back to an earlier position.
enum class Rollback {
    none,            // recurrent, of a release that cannot copy its state: only by decoding everything again
    seq_rm,          // a KV cache: its last cells are removed
    sliding_window,  // the same, as far back as the window reaches
    snapshot,        // recurrent or hybrid, n_rs_seq > 0: llama.cpp keeps the states after the last batch's tokens
    checkpoint,      // recurrent or hybrid: a copy of the state is put back, and what came after it decoded again
};

// Where a text has something that is no token, such as an image that a chat handler has decoded, it has a number of its
// own (engine/position.py): this one, or one below.
constexpr int32_t first_embedding = -(1 << 30);
inline bool is_embedding(int32_t id) { return id <= first_embedding; }

// A row of a batch that is not the text's, but beside it: a token as it might stand behind the text, and what it sees.
// A branch has the text up to its last token that is no draft (the first of which logits are wanted), and the rows
// before this one that are in the branch. The memory holds no such row, and no branch, but during the batch.
struct BesideRow {
    int32_t token = 0;
    std::size_t ahead = 0;         // places behind that token, from 1
    std::size_t branch = 0;        // whose rows it sees, from 0
    std::size_t num_branches = 1;  // it is in this one and in those after it, so many in all
    bool wanted = false;           // its logits
};

// Of MTP layers that stand one behind another: each of them, one after another.
constexpr int32_t all_layers = -1;

// What one sequence brings into a batch.
struct BatchPart {
    int32_t sequence = 0;              // its seq_id
    std::size_t position = 0;          // of the first token
    const int32_t * tokens = nullptr;  // [count]
    std::size_t count = 0;
    std::size_t first_output = 0;        // logits are wanted from this token on
    const TokenList * listed = nullptr;  // of these tokens alone; null: of all
    // Of a head's sequence: what it reads beside each token. Either the target's states [count][n_features], or its own
    // [count][state_size].
    const float * features = nullptr;
    const float * states = nullptr;
    bool keeps_states = false;  // copy_states() is called
    // Of a head with a noise block: so many of the first tokens are not read at all, but the features [num_injected].
    std::size_t num_injected = 0;
    // Of the only part of a batch: its rows stand behind the part's. Branch i takes the seq_id i + 1 behind the part's.
    const std::vector<BesideRow> * beside = nullptr;
    // Of several MTP layers: which one computes the batch, from 0, or all_layers. All parts have the same.
    int32_t layer = 0;
};

// What a head reads that says several tokens in one decode: the last token of the text, then masks. The target's states
// of the text before it go into its memory in a batch that has no tokens.
struct NoiseBlock {
    std::size_t size = 0;   // tokens of the longest one
    int32_t mask = 0;       // the token that stands for one that is not known yet
    std::size_t first = 0;  // of its places: the first that says a token of the draft
    // What it says is chained, place by place, in graphs that take all blocks of a batch to be of one size.
    bool is_whole = false;
    // It chooses among so many tokens a place, by what the token before it is: its state has their ids, then for each
    // of those before it their scores. 0: its logits say what it says.
    std::size_t num_candidates = 0;
};

// The hidden states that a decoder gives, and those that it takes.
struct HiddenStates {
    // Of a head: its own state, then, if it has an encoder, what that has made of the target's. Else what a head is to
    // read, in this order. Null: it gives none.
    std::shared_ptr<Taps> taps = nullptr;
    std::size_t n_features = 0;  // floats of the target that a head takes for a token; 0: it is no head
    bool encodes = false;        // they go through an encoder of its own
    std::optional<NoiseBlock> block = std::nullopt;  // of a head that has one
    bool of_wanted = false;  // what is given is computed of those tokens alone whose logits are wanted
    // Of MTP layers, the i-th of which predicts the i-th token: how many there are, and libllama's function that says
    // which one computes the next batch. Null: there is one.
    std::size_t num_layers = 1;
    void (*choose_layer)(llama_context *, int32_t) = nullptr;
};

// Whether only the logits that are wanted are computed.
enum class Skipping { unknown, no, yes };

class Decoder {
public:
    // `name`: "target" or "draft", for messages. `n_ctx`: how many tokens one sequence may have; 0: all that there is
    // room for. `embeds`: the context was made to give embeddings, too. Throws std::invalid_argument for a context
    // without a KV cache (an embedding model).
    Decoder(std::shared_ptr<const LlamaApi> api, llama_context * context, std::string name, std::size_t n_ctx = 0,
            HiddenStates hidden = {}, bool embeds = false);
    Decoder(const Decoder &) = delete;
    Decoder & operator=(const Decoder &) = delete;

    const std::string & name() const { return name_; }
    std::size_t n_ctx() const { return n_ctx_; }
    // How many tokens its memory has room for, of all sequences together.
    std::size_t num_cells() const { return num_cells_; }
    std::size_t n_batch() const { return n_batch_; }
    std::size_t n_vocab() const { return n_vocab_; }
    bool is_eog(int32_t token) const;

    // What is said of its memory.
    Rollback rollback() const { return rollback_; }
    bool is_recurrent() const { return rollback_ != Rollback::seq_rm && rollback_ != Rollback::sliding_window; }
    // How many tokens at the end of a batch, but for its first, a recurrent memory can forget without a copy.
    std::size_t num_snapshots() const { return num_snapshots_; }

    // Refuses a batch that would trip a GGML_ASSERT, and so abort the process: std::invalid_argument.
    void refuse_bad_batch(const BatchPart * parts, std::size_t num_parts) const;

    // Decodes the parts in one batch, their tokens one after the other. Returns the code of llama_decode; after any
    // but 0 the memory may hold part of it.
    int32_t decode(const BatchPart * parts, std::size_t num_parts);

    // Known from the first batch of which only some logits were wanted. Then a row of such a batch has no others.
    Skipping skipping() const { return skipping_; }

    // The logits [n_vocab] of token number i of the last batch. Valid until the next one.
    float * logits(std::size_t i);

    // Whether it reads hidden states of another model's: its tokens alone cannot be decoded.
    bool is_head() const { return hidden_.n_features > 0; }
    std::size_t n_features() const { return hidden_.n_features; }
    const std::optional<NoiseBlock> & noise_block() const { return hidden_.block; }
    std::size_t num_layers() const { return hidden_.choose_layer == nullptr ? 1 : hidden_.num_layers; }
    // Whether it gives them of those tokens alone whose logits are wanted.
    bool gives_of_wanted() const { return hidden_.of_wanted; }
    // Floats that it gives for a token.
    std::size_t state_size() const { return state_size_; }
    // Appends the hidden states [count][state_size] of tokens of the last batch from number `first` on, if that batch
    // kept them. Throws DecodeError if llama.cpp computes no tensors of these names.
    void copy_states(std::size_t first, std::size_t count, std::vector<float> & out) const;

    // Tokens decoded since the beginning.
    std::size_t num_decoded() const { return num_decoded_; }
    // Whether the last batch says what such batches take: the first one takes longer, on a GPU many times as long.
    bool was_warm() const { return num_batches_ > 1; }

    // Whether the logits of a token were the same to the last bit in any batch, so far: false before the first decode.
    // It takes one text in a memory whose cells stand in the order of their tokens.
    bool is_batch_invariant() const {
        return saw_ours_ && !saw_foreign_ && rollback_ == Rollback::seq_rm && sequences_.size() <= 1;
    }

    bool is_open() const { return context_ != nullptr; }
    // Whether somebody is between the beginning and the end of a Use of it.
    bool is_in_use() const { return in_use_; }
    void require_open() const;

    // Forgets the llama_context: whoever created it is about to free it.
    void close() {
        const std::lock_guard lock(memory_mutex_);
        context_ = nullptr;
    }

    // Whether several texts decode in it together, each from a thread of its own.
    bool is_shared() const { return is_shared_; }
    void set_shared(bool is_shared) { is_shared_ = is_shared; }

    // Held while the memory, or what a sequence knows of it, changes or is read by another thread.
    std::recursive_mutex & memory_mutex() { return memory_mutex_; }

    // The memory of one sequence. For class Sequence, which knows when what may be called.

    // Whether the cells from `count` on are gone, with what the next token looks at still there.
    bool remove_behind(int32_t sequence, std::size_t count);
    // Empties it, as it were new.
    void clear(int32_t sequence);
    // How many tokens the memory has seen: all parts of it.
    std::size_t memory_end(int32_t sequence) const;
    // Copies what cannot be cut. Whether it succeeded.
    bool copy_state(int32_t sequence, std::vector<std::uint8_t> & state);
    bool restore_state(int32_t sequence, const std::vector<std::uint8_t> & state);

    // The keys and values of `other` at the positions [first, end) become those of `sequence`, too: the cells are
    // shared. Whether all that the next token looks at is there. For a memory that all sequences share.
    bool share(int32_t other, int32_t sequence, std::size_t first, std::size_t end);

    // A sequence lives in this memory. Throws std::invalid_argument if another one has its seq_id.
    void add_sequence(int32_t id, Sequence * sequence);
    void remove_sequence(int32_t id);
    const std::map<int32_t, Sequence *> & sequences() const { return sequences_; }  // by seq_id
    std::uint64_t next_cell() { return num_cells_filled_++; }
    std::uint64_t next_plan() { return ++num_plans_; }  // from 1

    // After a decode that returned 2: throws what ended it, if somebody of ours did.
    void raise_interruption() { interruption_->raise(); }
    // For a scheduler: see Use.
    void ask(const std::function<void()> * poll) { interruption_->ask(poll); }

    // Marks the decoder as in use; a second thread gets BusyError instead of a corrupt cache. `poll` is called now and
    // then while it decodes on a CPU; what that throws ends the decode, with the caches as after any failure. Where
    // several texts share the decoder, many threads may use it, and `poll` is not called.
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
    bool window_is_whole(int32_t sequence, std::size_t count) const;
    void lay_out(const BatchPart * parts, std::size_t num_parts);
    void lay_out_beside(const BatchPart & part);
    int32_t lay_out_inputs(const BatchPart * parts, std::size_t num_parts);
    int32_t inject(const BatchPart * parts, std::size_t num_parts);
    int32_t encode(const float * features, std::size_t count);
    int32_t decode_without_embeddings(const llama_batch & batch);
    int32_t decode_in_branches(const llama_batch & batch, const BatchPart & part);
    int32_t decode_in_layers(const llama_batch & batch, const BatchPart * parts, std::size_t num_parts);
    int32_t decode_laid_out(const llama_batch & batch, const BatchPart * parts, std::size_t num_parts);
    std::size_t num_given() const { return hidden_.taps ? hidden_.taps->size() - (hidden_.encodes ? 1 : 0) : 0; }
    std::size_t row_of(std::size_t token, std::size_t num_rows) const;
    std::size_t place_in_batch(std::size_t token) const { return hidden_.block ? places_.at(token) : token; }

    std::shared_ptr<const LlamaApi> api_;
    llama_context * context_;
    std::string name_;
    const llama_vocab * vocab_;
    llama_memory_i * memory_;
    std::size_t num_cells_;
    std::size_t n_ctx_;
    std::size_t n_batch_;
    std::size_t n_vocab_;
    std::size_t n_swa_;
    std::size_t num_snapshots_;
    HiddenStates hidden_;
    bool embeds_;
    Rollback rollback_;
    std::size_t n_embd_;
    std::size_t state_size_;
    std::map<int32_t, Sequence *> sequences_;  // that live in it
    std::uint64_t num_cells_filled_ = 0;
    std::uint64_t num_plans_ = 0;
    std::size_t num_decoded_ = 0;
    std::size_t num_batches_ = 0;
    bool is_shared_ = false;
    std::recursive_mutex memory_mutex_;
    std::atomic<bool> saw_ours_{false};  // see OperationsSeen; others read it while a batch is decoded
    std::atomic<bool> saw_foreign_{false};
    std::atomic<Skipping> skipping_{Skipping::unknown};
    std::atomic<bool> in_use_{false};
    // The llama_context has its address, and may live longer than this object: never freed.
    Interruption * interruption_ = nullptr;

    // The llama_batch: its arrays are kept from decode to decode.
    std::vector<int32_t> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequence_counts_;
    std::vector<int32_t> sequence_ids_;
    std::vector<int32_t> branch_ids_;  // the part's own, then those of the branches
    std::vector<int32_t *> sequence_pointers_;
    std::vector<int8_t> outputs_;
    std::vector<float> features_;
    std::vector<float> inputs_;
    std::vector<std::size_t> places_;  // of each token in the batch: fewer than there are where some are injected
};

}  // namespace specllama
