// One llama_context and one sequence of it.
#include "context.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"

namespace specllama {

namespace {

constexpr int32_t kSequence = 0;
constexpr uint32_t kPartialOnly = 1;  // LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: without what seq_rm can cut

llama_context * not_null(llama_context * context) {
    if (context == nullptr) {
        throw ClosedError("the llama_context is null: this Llama is closed");
    }
    return context;
}

}  // namespace

Context::Context(std::shared_ptr<const LlamaApi> api, llama_context * context, std::string name)
    : api_(std::move(api)),
      context_(not_null(context)),
      name_(std::move(name)),
      vocab_(api_->llama_model_get_vocab(api_->llama_get_model(context))),
      memory_(api_->llama_get_memory(context)),
      n_ctx_(api_->llama_n_ctx(context)),
      n_batch_(api_->llama_n_batch(context)),
      n_vocab_(static_cast<std::size_t>(api_->llama_vocab_n_tokens(vocab_))),
      n_swa_(static_cast<std::size_t>(std::max(0, api_->llama_model_n_swa(api_->llama_get_model(context))))),
      num_snapshots_(snapshots_of_context()),
      rollback_(way_back()) {
    if (memory_ == nullptr) {
        throw std::invalid_argument("the " + name_ +
                                    " model keeps no KV cache: it is an embedding model and cannot generate text");
    }
}

bool Context::is_eog(int32_t token) const { return api_->llama_vocab_is_eog(vocab_, token); }

void Context::require_open() const {
    if (context_ == nullptr) {
        throw ClosedError("the " + name_ + " Llama is closed: create a new one");
    }
}

// A sliding window may have moved on when a snapshot is needed; a copy has it, too.
std::size_t Context::snapshots_of_context() const {
    return api_->llama_n_rs_seq != nullptr && n_swa_ == 0 ? api_->llama_n_rs_seq(context_) : 0;
}

Rollback Context::way_back() const {
    const llama_model * model = api_->llama_get_model(context_);
    const bool is_hybrid = api_->llama_model_is_hybrid != nullptr && api_->llama_model_is_hybrid(model);
    if (!is_hybrid && !api_->llama_model_is_recurrent(model)) {
        return n_swa_ > 0 ? Rollback::sliding_window : Rollback::seq_rm;
    }
    const bool can_copy = api_->llama_state_seq_get_size_ext != nullptr &&
                          api_->llama_state_seq_get_data_ext != nullptr &&
                          api_->llama_state_seq_set_data_ext != nullptr;
    if (!can_copy) {
        return Rollback::none;
    }
    return num_snapshots_ > 0 ? Rollback::snapshot : Rollback::checkpoint;
}

void Context::assume(std::vector<int32_t> tokens) {
    const auto common = std::mismatch(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end()).first;
    const auto count = static_cast<std::size_t>(common - tokens.begin());
    prompt_.drop_behind(count);
    checkpoints_.drop_behind(count);
    tokens_ = std::move(tokens);
    more_behind_ = true;
    num_forgettable_ = 0;
}

void Context::clear() {
    // The cells, not their data: zeroing the buffers of a long context would take as long as a prompt.
    api_->llama_memory_clear(memory_, false);
    shrink(0);
}

void Context::shrink(std::size_t count) {
    tokens_.resize(count);
    prompt_.drop_behind(count);
    checkpoints_.drop_behind(count);
    more_behind_ = false;
    num_forgettable_ = 0;
}

// A sliding window forgets what lies behind it. After a cut to `count` tokens the next one still needs the last n_swa.
bool Context::window_is_whole(std::size_t count) const {
    if (rollback_ != Rollback::sliding_window) {
        return true;
    }
    const auto first = api_->llama_memory_seq_pos_min(memory_, kSequence);
    return first >= 0 && static_cast<std::size_t>(first) <= (count > n_swa_ ? count - n_swa_ : 0);
}

// How many tokens the memory has seen: all parts of it.
std::size_t Context::memory_end() const {
    const auto last = api_->llama_memory_seq_pos_max(memory_, kSequence);
    return last < 0 ? 0 : static_cast<std::size_t>(last) + 1;
}

bool Context::remove_behind(std::size_t count) {
    if (is_recurrent()) {
        // It is not enough that llama_memory_seq_rm says yes: it would take snapshots of an earlier batch for those of
        // the last one.
        const std::size_t end = memory_end();
        if (end < count || end - count > num_forgettable_) {
            return false;
        }
    }
    return api_->llama_memory_seq_rm(memory_, kSequence, static_cast<int32_t>(count), -1) && window_is_whole(count);
}

// Leaves the first `count` tokens in the cache, or fewer where that cannot be done.
void Context::cut(std::size_t count) {
    const bool nothing_to_do = count == tokens_.size() && !more_behind_;
    if (nothing_to_do && (!is_recurrent() || memory_end() == count)) {
        return;
    }
    if (count > 0 && remove_behind(count)) {
        shrink(count);
    } else {
        restore(count);
    }
}

// The last copy at or before `count` tokens, or an empty cache.
void Context::restore(std::size_t count) {
    const Checkpoint * best = prompt_.latest(count);
    const Checkpoint * other = checkpoints_.latest(count);
    if (best == nullptr || (other != nullptr && other->position > best->position)) {
        best = other;
    }
    if (best != nullptr) {
        const Stopwatch stopwatch(decode_seconds_);
        const auto & state = best->state;
        if (api_->llama_state_seq_set_data_ext(context_, state.data(), state.size(), kSequence, kPartialOnly) ==
                state.size() &&
            remove_behind(best->position)) {
            shrink(best->position);
            return;
        }
    }
    clear();
}

void Context::save_to(Checkpoints & checkpoints, std::size_t most) {
    require_open();
    const std::size_t position = tokens_.size();
    if (!is_recurrent() || rollback_ == Rollback::none || position == 0) {
        return;
    }
    for (const Checkpoints * existing : {&prompt_, &checkpoints_}) {
        const Checkpoint * latest = existing->latest(position);
        if (latest != nullptr && latest->position == position) {
            return;
        }
    }
    const Stopwatch stopwatch(decode_seconds_);
    auto & state = checkpoints.add(position, most).state;
    state.resize(api_->llama_state_seq_get_size_ext(context_, kSequence, kPartialOnly));
    if (api_->llama_state_seq_get_data_ext(context_, state.data(), state.size(), kSequence, kPartialOnly) !=
        state.size()) {
        checkpoints.drop_behind(position - 1);
    }
}

std::size_t Context::keep_common(const std::vector<int32_t> & history) {
    require_open();
    const auto limit = std::min(tokens_.size(), history.empty() ? 0 : history.size() - 1);
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(limit);
    const auto common = std::mismatch(tokens_.begin(), end, history.begin()).first - tokens_.begin();
    cut(static_cast<std::size_t>(common));
    return tokens_.size();
}

void Context::keep(std::size_t count) {
    require_open();
    cut(std::min(count, tokens_.size()));
}

// What would trip a GGML_ASSERT, and so abort the process, is refused here.
void Context::refuse_bad_batch(const int32_t * tokens, std::size_t count) const {
    if (count == 0 || count > n_batch_) {
        throw std::invalid_argument("a batch of " + std::to_string(count) + " tokens does not fit: n_batch=" +
                                    std::to_string(n_batch_) + " of the " + name_ + " allows 1 to that many");
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= n_vocab_) {
            throw std::invalid_argument("token " + std::to_string(tokens[i]) + " is out of range: the " + name_ +
                                        "'s vocabulary has the tokens 0 to " + std::to_string(n_vocab_ - 1));
        }
    }
    if (tokens_.size() + count > n_ctx_) {
        throw ContextFullError("the context is full: " + std::to_string(tokens_.size() + count) +
                               " tokens do not fit into n_ctx=" + std::to_string(n_ctx_) + " of the " + name_ +
                               "; create the Llama with a larger n_ctx");
    }
}

void Context::decode(const int32_t * tokens, std::size_t count, std::size_t first_output) {
    require_open();
    refuse_bad_batch(tokens, count);
    static int32_t sequence_id = kSequence;
    sequences_.assign(count, &sequence_id);
    sequence_counts_.assign(count, 1);
    positions_.resize(count);
    outputs_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        positions_[i] = static_cast<int32_t>(tokens_.size() + i);
        outputs_[i] = i >= first_output ? 1 : 0;
    }
    const llama_batch batch = {
        static_cast<int32_t>(count),
        const_cast<int32_t *>(tokens),
        nullptr,
        positions_.data(),
        sequence_counts_.data(),
        sequences_.data(),
        outputs_.data(),
    };
    int32_t code = 0;
    {
        const Stopwatch stopwatch(decode_seconds_);
        code = api_->llama_decode(context_, batch);
        if (code == 0) {
            api_->llama_synchronize(context_);  // a GPU backend returns before it is done
        }
    }
    if (code != 0) {
        fail(code, count);
    }
    tokens_.insert(tokens_.end(), tokens, tokens + count);
    num_decoded_ += count;
    num_forgettable_ = std::min(num_snapshots_, count - 1);
}

void Context::fail(int code, std::size_t count) {
    const std::size_t committed = tokens_.size();
    more_behind_ = true;  // after an abort or a fatal error the cache may hold part of the batch
    if (is_recurrent() && code != 1) {
        restore(committed);  // whatever position it claims to be at, its state may have been overwritten
    } else {
        cut(committed);
    }
    const std::string what = "llama_decode of " + std::to_string(count) + " tokens behind " +
                             std::to_string(committed) + " returned " + std::to_string(code) + " on the " + name_;
    if (code == 1) {
        throw ContextFullError(what + ": no room in the KV cache; create the Llama with a larger n_ctx");
    }
    if (code == 2) {
        throw DecodeError(what + ": aborted by the abort callback; the call can be repeated");
    }
    throw DecodeError(what + ": the backend failed (out of memory?); nothing was lost, the call can be repeated");
}

float * Context::logits(std::size_t i) {
    require_open();
    float * row = api_->llama_get_logits_ith(context_, static_cast<int32_t>(i));
    if (row == nullptr) {
        throw DecodeError("the " + name_ + " has no logits: was it created with embedding=True?");
    }
    return row;
}

Context::Use::Use(Context & context) : context_(context) {
    if (context_.in_use_.exchange(true)) {
        throw BusyError("the " + context_.name_ +
                        " Llama is generating in another thread: wait for it, or create one Llama for each thread");
    }
}

Context::Use::~Use() { context_.in_use_.store(false); }

}  // namespace specllama
