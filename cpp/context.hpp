// One llama_context and one sequence of it: what its KV cache holds, decoding, logits rows, rollback.
// The only caller of LlamaApi.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoints.hpp"
#include "llama_api.hpp"

namespace specllama {

// How a memory goes back to an earlier position.
enum class Rollback {
    none,            // recurrent, of a release that cannot copy its state: only by decoding everything again
    seq_rm,          // a KV cache: its last cells are removed
    sliding_window,  // the same, as far back as the window reaches
    snapshot,        // recurrent or hybrid, n_rs_seq > 0: llama.cpp keeps the states behind the last batch's tokens
    checkpoint,      // recurrent or hybrid: a copy of the state is put back, and what came behind it decoded again
};

class Context {
public:
    // Throws std::invalid_argument for a context without a KV cache (an embedding model).
    Context(std::shared_ptr<const LlamaApi> api, llama_context * context, std::string name);
    Context(const Context &) = delete;
    Context & operator=(const Context &) = delete;

    const std::string & name() const { return name_; }
    std::size_t n_ctx() const { return n_ctx_; }
    std::size_t n_batch() const { return n_batch_; }
    std::size_t n_vocab() const { return n_vocab_; }
    bool is_eog(int32_t token) const;

    // The tokens whose keys and values the cache holds, from position 0.
    const std::vector<int32_t> & tokens() const { return tokens_; }

    // Says what the cache holds after somebody else used the context. It may hold more behind them.
    void assume(std::vector<int32_t> tokens);

    Rollback rollback() const { return rollback_; }
    // How many tokens at the end of a batch, but for its first, a recurrent memory can forget without a copy.
    std::size_t num_snapshots() const { return num_snapshots_; }
    // How many it can now. One rollback uses them up.
    std::size_t num_forgettable() const { return num_forgettable_; }

    // Rolls back to the longest common prefix with `history`, but for its last token (whose logits are needed next).
    // Returns how many tokens are kept: fewer than that, even 0, where the memory cannot be cut there.
    std::size_t keep_common(const std::vector<int32_t> & history);

    // Rolls back to at most `count` tokens.
    void keep(std::size_t count);

    // A rollback to here may follow: copies the state of a memory that cannot be cut. At most `most` copies are kept,
    // the newest ones, and one of the prompt besides.
    void save(std::size_t most) { save_to(checkpoints_, most); }
    void save_prompt() { save_to(prompt_, 1); }

    // Decodes `count` <= n_batch tokens behind those in the cache, with logits for those from `first_output` on.
    // On failure the cache is put back to where it was, or emptied if that cannot be done. Throws
    // std::invalid_argument (token out of range), ContextFullError, DecodeError.
    void decode(const int32_t * tokens, std::size_t count, std::size_t first_output);

    // The logits [n_vocab] of token number i of the last decode. Valid until the next one.
    float * logits(std::size_t i);

    // Tokens decoded, and seconds spent in llama_decode and in copying states, since the beginning.
    std::size_t num_decoded() const { return num_decoded_; }
    double decode_seconds() const { return decode_seconds_; }

    bool is_open() const { return context_ != nullptr; }

    // Forgets the llama_context: whoever created it is about to free it.
    void close() { context_ = nullptr; }

    // Marks the context as in use; a second thread gets BusyError instead of a corrupt cache.
    class Use {
    public:
        explicit Use(Context & context);
        ~Use();
        Use(const Use &) = delete;
        Use & operator=(const Use &) = delete;

    private:
        Context & context_;
    };

private:
    void require_open() const;
    void refuse_bad_batch(const int32_t * tokens, std::size_t count) const;
    std::size_t snapshots_of_context() const;
    Rollback way_back() const;
    bool is_recurrent() const { return rollback_ != Rollback::seq_rm && rollback_ != Rollback::sliding_window; }
    void cut(std::size_t count);
    bool remove_behind(std::size_t count);
    void restore(std::size_t count);
    void shrink(std::size_t count);
    bool window_is_whole(std::size_t count) const;
    std::size_t memory_end() const;
    void save_to(Checkpoints & checkpoints, std::size_t most);
    void clear();
    [[noreturn]] void fail(int code, std::size_t count);

    std::shared_ptr<const LlamaApi> api_;
    llama_context * context_;
    std::string name_;  // "target" or "draft", for messages
    const llama_vocab * vocab_;
    llama_memory_i * memory_;
    std::size_t n_ctx_;
    std::size_t n_batch_;
    std::size_t n_vocab_;
    std::size_t n_swa_;
    std::size_t num_snapshots_;
    Rollback rollback_;
    std::size_t num_forgettable_ = 0;
    std::vector<int32_t> tokens_;
    bool more_behind_ = false;  // the cache may hold cells behind tokens_
    Checkpoints prompt_;        // these, too, are of prefixes of tokens_
    Checkpoints checkpoints_;
    std::size_t num_decoded_ = 0;
    double decode_seconds_ = 0.0;
    std::atomic<bool> in_use_{false};

    // The llama_batch: its arrays are kept from decode to decode.
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequence_counts_;
    std::vector<int32_t *> sequences_;
    std::vector<int8_t> outputs_;
};

}  // namespace specllama
