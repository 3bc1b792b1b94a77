// One llama_context.
#include "llama/decoder.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/quantized_type.hpp"
#include "kernels/this_decode.hpp"
#include "llama/decode_under_way.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

constexpr uint32_t kPartialOnly = 1;  // LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the part of a state that seq_rm cannot cut

llama_context * not_null(llama_context * context) {
    if (context == nullptr) {
        throw ClosedError("the llama_context is null: this Llama is closed");
    }
    return context;
}

std::size_t num_branch_rows(const BatchPart & part) {
    return part.branch_rows == nullptr ? 0 : part.branch_rows->size();
}

std::size_t num_tokens(const BatchPart * parts, std::size_t num_parts) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < num_parts; ++i) {
        count += parts[i].count + parts[i].padding + num_branch_rows(parts[i]);
    }
    return count;
}

std::size_t num_branches(const BatchPart & part) {
    std::size_t count = 0;
    for (const BranchRow & row : *part.branch_rows) {
        count = std::max(count, row.branch + row.num_branches);
    }
    return count;
}

// The tokens whose logits any part wants; nothing if one part wants the logits of all tokens.
std::optional<TokenList> listed_by_all(const BatchPart * parts, std::size_t num_parts, std::size_t n_vocab) {
    TokenList listed(n_vocab);
    for (std::size_t i = 0; i < num_parts; ++i) {
        if (parts[i].first_output >= parts[i].count) {
            continue;
        }
        if (parts[i].listed == nullptr) {
            return std::nullopt;
        }
        listed.add(*parts[i].listed);
    }
    return listed;
}

// The panels (groups of rows) of the output matrix that a batch needs; an empty WantedPanels stands for all panels.
WantedPanels panels_of(const std::optional<TokenList> & listed, std::size_t n_vocab, bool is_encoder) {
    static_assert(TokenList::group_size == kernels::kPanelRows);
    static constexpr int32_t first_panel = 0;
    if (listed && !listed->groups().empty()) {
        return {listed->groups().data(), static_cast<int64_t>(listed->groups().size()), static_cast<int64_t>(n_vocab)};
    }
    if (listed && is_encoder) {
        return {&first_panel, 1, 0};  // no logit is wanted, but llama.cpp would compute all
    }
    return {};
}

// A state is a header, keys and values, and the rest; a point is the same header and the rest. Releases have a header
// of 8 bytes, or none. Returns a byte with the size of the header, then the keys and values; empty if the states are
// built in another way.
StateBytes without_point(const StateBytes & state, const StateBytes & point) {
    const std::uint8_t * const first = state.data.get();
    const std::uint8_t * const end = first + state.size;
    for (const std::uint8_t header : {std::uint8_t{0}, std::uint8_t{8}}) {
        if (point.size < header || state.size < point.size) {
            continue;
        }
        const std::size_t rest = point.size - header;
        if (std::equal(end - rest, end, point.data.get() + header) &&
            std::equal(first, first + header, point.data.get())) {
            StateBytes range;
            range.size = 1 + state.size - header - rest;
            range.data.reset(new std::uint8_t[range.size]);
            range.data[0] = header;
            std::copy(first + header, end - rest, range.data.get() + 1);
            return range;
        }
    }
    return {};
}

// The state of such a range and a point; empty if the bytes are no range.
std::vector<std::uint8_t> with_point(const std::uint8_t * range, std::size_t size, const StateBytes & point) {
    std::vector<std::uint8_t> state;
    if (size > 0 && range[0] <= point.size) {
        const std::uint8_t * const first = point.data.get();
        state.reserve(size + point.size);
        state.assign(first, first + range[0]);
        state.insert(state.end(), range + 1, range + size);
        state.insert(state.end(), first + range[0], first + point.size);
    }
    return state;
}

// Several copied parts as one: the size of each, then its bytes. Empty if one of them is.
StateBytes joined(const std::vector<StateBytes> & pieces) {
    StateBytes whole;
    for (const StateBytes & piece : pieces) {
        if (piece.size == 0) {
            return {};
        }
        whole.size += sizeof(std::uint64_t) + piece.size;
    }
    whole.data.reset(new std::uint8_t[whole.size]);
    std::uint8_t * out = whole.data.get();
    for (const StateBytes & piece : pieces) {
        const std::uint64_t size = piece.size;
        std::memcpy(out, &size, sizeof(size));
        std::memcpy(out + sizeof(size), piece.data.get(), piece.size);
        out += sizeof(size) + piece.size;
    }
    return whole;
}

struct StateView {
    const std::uint8_t * data;
    std::size_t size;
};

// Takes the first of several parts; empty if there is none.
StateView next_piece(const std::uint8_t *& data, std::size_t & left) {
    std::uint64_t size = 0;
    if (left < sizeof(size)) {
        return {data, 0};
    }
    std::memcpy(&size, data, sizeof(size));
    if (size > left - sizeof(size)) {
        return {data, 0};
    }
    const StateView piece{data + sizeof(size), static_cast<std::size_t>(size)};
    data += sizeof(size) + piece.size;
    left -= sizeof(size) + piece.size;
    return piece;
}

}  // namespace

Decoder::Decoder(std::shared_ptr<const LlamaApi> api, llama_context * context, std::string name, std::size_t n_ctx,
                 HiddenStates hidden, bool embeds, ContextExtras extras)
    : api_(std::move(api)),
      context_(not_null(context)),
      name_(std::move(name)),
      vocab_(api_->llama_model_get_vocab(api_->llama_get_model(context))),
      memory_(api_->llama_get_memory(context)),
      num_cells_(hidden.target ? hidden.target->num_cells() : api_->llama_n_ctx(context)),
      n_ctx_(n_ctx > 0 ? std::min(n_ctx, num_cells_) : num_cells_),
      n_vocab_(static_cast<std::size_t>(api_->llama_vocab_n_tokens(vocab_))),
      n_swa_(static_cast<std::size_t>(std::max(0, api_->llama_model_n_swa(api_->llama_get_model(context))))),
      n_batch_(api_->llama_n_batch(context)),
      num_snapshots_(snapshots_of_context()),
      hidden_(std::move(hidden)),
      embeds_(embeds),
      extras_(extras),
      can_copy_(api_->llama_state_seq_get_size_ext != nullptr && api_->llama_state_seq_get_data_ext != nullptr &&
                api_->llama_state_seq_set_data_ext != nullptr),
      rollback_(way_back()),
      is_pure_recurrent_(is_recurrent() && !is_hybrid()),
      inputs_(api_, hidden_, name_) {
    if (memory_ == nullptr) {
        throw std::invalid_argument("the " + name_ +
                                    " model keeps no KV cache: it is an embedding model and cannot generate text");
    }
    interruption_ = new Interruption();
    api_->llama_set_abort_callback(context_, &Interruption::is_wanted, interruption_);
}

bool Decoder::is_eog(int32_t token) const { return api_->llama_vocab_is_eog(vocab_, token); }

bool Decoder::is_control(int32_t token) const {
    return token >= 0 && static_cast<std::size_t>(token) < n_vocab_ && api_->llama_vocab_is_control(vocab_, token);
}

void Decoder::require_open() const {
    if (context_ == nullptr) {
        throw ClosedError("the " + name_ + " Llama is closed: create a new one");
    }
    if (reads_target()) {
        hidden_.target->require_open();
    }
}

// No snapshots are used with a sliding window: the window may have moved on when a snapshot is needed. A copy of the
// state holds the window, too, so copies are used instead.
std::size_t Decoder::snapshots_of_context() const {
    return api_->llama_n_rs_seq != nullptr && n_swa_ == 0 ? api_->llama_n_rs_seq(context_) : 0;
}

Rollback Decoder::way_back() const {
    // A head has attention only, even the head of a hybrid model.
    if (is_head() || (!is_hybrid() && !api_->llama_model_is_recurrent(api_->llama_get_model(context_)))) {
        return n_swa_ > 0 ? Rollback::sliding_window : Rollback::seq_rm;
    }
    if (!can_copy_) {
        return Rollback::none;
    }
    return num_snapshots_ > 0 ? Rollback::snapshot : Rollback::checkpoint;
}

bool Decoder::is_hybrid() const {
    return api_->llama_model_is_hybrid != nullptr && api_->llama_model_is_hybrid(api_->llama_get_model(context_));
}

void Decoder::add_sequence(int32_t id, Sequence * sequence) {
    const std::lock_guard lock(memory_mutex());
    if (!sequences_.emplace(id, sequence).second) {
        throw std::invalid_argument("sequence " + std::to_string(id) + " of the " + name_ +
                                    " is there already: share it, or take another id");
    }
}

void Decoder::remove_sequence(int32_t id) {
    const std::lock_guard lock(memory_mutex());
    sequences_.erase(id);
}

// Cells that a window has left behind may have been taken for other texts, even where all of the window is kept.
bool Decoder::has_cells_from(int32_t sequence, std::size_t first) const {
    return window_is_whole(sequence, first + n_swa_);
}

bool Decoder::share(int32_t other, int32_t sequence, std::size_t first, std::size_t end) {
    api_->llama_memory_seq_cp(memory_, other, sequence, static_cast<int32_t>(first), static_cast<int32_t>(end));
    return memory_end(sequence) == end && window_is_whole(sequence, end);
}

bool Decoder::share(int32_t other, int32_t sequence, std::size_t first, std::size_t end,
                    const std::vector<std::uint8_t> & state) {
    api_->llama_memory_seq_cp(memory_, other, sequence, static_cast<int32_t>(first), static_cast<int32_t>(end));
    return restore_state(sequence, state) && memory_end(sequence) == end;
}

// A sliding window forgets older tokens. After a cut to `count` tokens the next token still needs the last n_swa.
bool Decoder::window_is_whole(int32_t sequence, std::size_t count) const {
    if (rollback_ != Rollback::sliding_window) {
        return true;
    }
    const auto first = api_->llama_memory_seq_pos_min(memory_, sequence);
    return first >= 0 && static_cast<std::size_t>(first) <= (count > n_swa_ ? count - n_swa_ : 0);
}

std::size_t Decoder::memory_end(int32_t sequence) const {
    const auto last = api_->llama_memory_seq_pos_max(memory_, sequence);
    return last < 0 ? 0 : static_cast<std::size_t>(last) + 1;
}

bool Decoder::remove_behind(int32_t sequence, std::size_t count) {
    return api_->llama_memory_seq_rm(memory_, sequence, static_cast<int32_t>(count), -1) &&
           window_is_whole(sequence, count);
}

void Decoder::clear(int32_t sequence) {
    if (reads_target()) {
        return;  // llama_memory_clear would empty the target's memory
    }
    if (sequences_.size() > 1 && api_->llama_memory_seq_rm(memory_, sequence, -1, -1)) {
        return;
    }
    // Only the cells are cleared, not their data: zeroing the buffers of a long context would take as long as a prompt.
    api_->llama_memory_clear(memory_, false);
}

bool Decoder::copy_state(int32_t sequence, std::vector<std::uint8_t> & state) {
    state.resize(api_->llama_state_seq_get_size_ext(context_, sequence, kPartialOnly));
    return api_->llama_state_seq_get_data_ext(context_, state.data(), state.size(), sequence, kPartialOnly) ==
           state.size();
}

bool Decoder::restore_state(int32_t sequence, const std::vector<std::uint8_t> & state) {
    return api_->llama_state_seq_set_data_ext(context_, state.data(), state.size(), sequence, kPartialOnly) ==
           state.size();
}

StateBytes Decoder::state_of(int32_t sequence, std::uint32_t flags) {
    StateBytes state;
    state.size = api_->llama_state_seq_get_size_ext(context_, sequence, flags);
    state.data.reset(new std::uint8_t[state.size]);  // not zeroed: llama.cpp fills all of it
    if (api_->llama_state_seq_get_data_ext(context_, state.data.get(), state.size, sequence, flags) != state.size) {
        state.size = 0;
    }
    return state;
}

// llama.cpp copies the state of a whole sequence. So the range is shared with the spare sequence first. Where there are
// recurrent states or windows that move on, these come last in a state, and are left out.
StateBytes Decoder::copy_range(int32_t sequence, std::size_t first, std::size_t end) {
    std::vector<StateBytes> pieces;
    for (std::size_t from = first; from < end; from = piece_end(from, end)) {
        const auto to = static_cast<int32_t>(piece_end(from, end));
        const SpareInUse in_use(*this);
        api_->llama_memory_seq_cp(memory_, sequence, extras_.spare, static_cast<int32_t>(from), to);
        pieces.push_back(state_of(extras_.spare, 0));
        if (needs_points() && pieces.back().size > 0) {
            pieces.back() = without_point(pieces.back(), state_of(extras_.spare, kPartialOnly));
            splits_states_ = pieces.back().size > 0;
        }
    }
    return rollback_ == Rollback::sliding_window ? joined(pieces) : std::move(pieces.front());
}

// A state lacks what a window has left behind. So what is copied at once is at most half a window, and begins at a
// multiple of that: then none of it is outside the window, however the model cuts its windows.
std::size_t Decoder::piece_end(std::size_t first, std::size_t end) const {
    const std::size_t most = rollback_ == Rollback::sliding_window ? std::max<std::size_t>(1, n_swa_ / 2) : end;
    return std::min(end, (first / most + 1) * most);
}

bool Decoder::put_range(int32_t sequence, const std::uint8_t * data, std::size_t size, std::size_t first,
                        std::size_t end) {
    if (rollback_ != Rollback::sliding_window) {
        return set_range(sequence, data, size, first, end);
    }
    for (std::size_t from = first; from < end; from = piece_end(from, end)) {
        const StateView piece = next_piece(data, size);
        if (piece.size == 0 || !set_range(sequence, piece.data, piece.size, from, piece_end(from, end))) {
            return false;
        }
    }
    return true;
}

bool Decoder::set_range(int32_t sequence, const std::uint8_t * data, std::size_t size, std::size_t first,
                        std::size_t end) {
    std::vector<std::uint8_t> whole;
    if (needs_points()) {
        whole = with_point(data, size, state_of(extras_.spare, kPartialOnly));  // of an empty sequence
        data = whole.data();
        size = whole.size();
    }
    const SpareInUse in_use(*this);
    if (api_->llama_state_seq_set_data_ext(context_, data, size, extras_.spare, 0) != size ||
        (has_whole_ranges() && !has_cells_from(extras_.spare, first))) {
        return false;
    }
    api_->llama_memory_seq_cp(memory_, extras_.spare, sequence, static_cast<int32_t>(first), static_cast<int32_t>(end));
    return needs_points() || memory_end(sequence) == end;
}

StateBytes Decoder::copy_point(int32_t sequence) { return state_of(sequence, copies_ranges() ? kPartialOnly : 0); }

bool Decoder::put_point(int32_t sequence, const std::uint8_t * data, std::size_t size) {
    return api_->llama_state_seq_set_data_ext(context_, data, size, sequence, copies_ranges() ? kPartialOnly : 0) ==
           size;
}

void Decoder::refuse_bad_batch(const BatchPart * parts, std::size_t num_parts) const {
    const std::size_t count = num_tokens(parts, num_parts);
    if (count == 0 || count > n_batch_) {
        throw std::invalid_argument("a batch of " + std::to_string(count) + " tokens does not fit: n_batch=" +
                                    std::to_string(n_batch_) + " of the " + name_ + " allows 1 to that many");
    }
    for (std::size_t i = 0; i < num_parts; ++i) {
        if (parts[i].count == 0) {
            throw std::invalid_argument("a part of a batch has no tokens: leave its sequence out");
        }
        if (is_head() && !hidden_.block && parts[i].features == nullptr && parts[i].states == nullptr) {
            throw std::invalid_argument("the " + name_ + " is a head: it reads hidden states beside tokens");
        }
        for (const int32_t * token = parts[i].tokens; token != parts[i].tokens + parts[i].count; ++token) {
            if (is_embedding(*token)) {
                const auto place = parts[i].position + static_cast<std::size_t>(token - parts[i].tokens);
                throw std::invalid_argument(
                    "place " + std::to_string(place) +
                    " of the text is no token: an image, or something unknown, was decoded there by other code, "
                    "and the memory of the " +
                    name_ +
                    " has lost it. It cannot be decoded again: give the image again, by create_chat_completion");
            }
            if (*token < 0 || static_cast<std::size_t>(*token) >= n_vocab_) {
                throw std::invalid_argument("token " + std::to_string(*token) + " is out of range: the " + name_ +
                                            "'s vocabulary has the tokens 0 to " + std::to_string(n_vocab_ - 1));
            }
        }
        if (parts[i].position + parts[i].count > n_ctx_) {
            throw ContextFullError("the context is full: " + std::to_string(parts[i].position + parts[i].count) +
                                   " tokens do not fit into n_ctx=" + std::to_string(n_ctx_) + " of the " + name_ +
                                   "; create the Llama with a larger n_ctx");
        }
    }
}

void Decoder::lay_out(const BatchPart * parts, std::size_t num_parts) {
    tokens_.clear();
    positions_.clear();
    outputs_.clear();
    sequence_pointers_.clear();
    places_.clear();
    sequence_ids_.resize(num_parts);
    // For a head with an encoder, llama.cpp computes the logits of all tokens, and then takes the first rows for those
    // of the wanted tokens. So the logits of all tokens are asked for.
    const bool wants_all =
        (hidden_.encodes || hidden_.block) &&
        std::any_of(parts, parts + num_parts, [](const BatchPart & part) { return part.first_output < part.count; });
    for (std::size_t k = 0; k < num_parts; ++k) {
        const BatchPart & part = parts[k];
        sequence_ids_[k] = part.seq_id;
        places_.insert(places_.end(), part.num_injected, tokens_.size());
        for (std::size_t i = part.num_injected; i < part.count; ++i) {
            places_.push_back(tokens_.size());
            tokens_.push_back(part.tokens[i]);
            positions_.push_back(static_cast<int32_t>(part.position + i));
            outputs_.push_back(wants_all || i >= part.first_output ? 1 : 0);
            sequence_pointers_.push_back(&sequence_ids_[k]);
        }
        for (std::size_t i = part.count; i < part.count + part.padding; ++i) {
            places_.push_back(tokens_.size());
            tokens_.push_back(part.tokens[part.count - 1]);
            positions_.push_back(static_cast<int32_t>(part.position + i));
            outputs_.push_back(0);
            sequence_pointers_.push_back(&sequence_ids_[k]);
        }
    }
    sequence_counts_.assign(tokens_.size(), 1);
    if (num_branch_rows(parts[0]) > 0) {
        lay_out_branches(parts[0]);
    }
}

// A token sees the memory's cells that belong to its first seq_id. Its own cell belongs to all its seq_ids.
void Decoder::lay_out_branches(const BatchPart & part) {
    branch_ids_.resize(1 + num_branches(part));
    std::iota(branch_ids_.begin(), branch_ids_.end(), part.seq_id);
    const std::size_t last = part.first_output;
    sequence_pointers_[last] = branch_ids_.data();
    sequence_counts_[last] = static_cast<int32_t>(branch_ids_.size());
    for (const BranchRow & row : *part.branch_rows) {
        tokens_.push_back(row.token);
        positions_.push_back(static_cast<int32_t>(part.position + last + row.ahead));
        outputs_.push_back(row.wanted ? 1 : 0);
        sequence_pointers_.push_back(branch_ids_.data() + 1 + row.branch);
        sequence_counts_.push_back(static_cast<int32_t>(row.num_branches));
    }
}

// The row of a token in a tensor. llama.cpp may have computed rows only for the tokens whose logits are wanted.
std::size_t Decoder::row_of(std::size_t token, std::size_t num_rows) const {
    if (num_rows == tokens_.size() && token < num_rows) {
        return token;
    }
    const auto end = outputs_.begin() + static_cast<std::ptrdiff_t>(std::min(token, outputs_.size()));
    const auto num_before = static_cast<std::size_t>(std::count(outputs_.begin(), end, 1));
    const auto num_outputs = static_cast<std::size_t>(std::count(end, outputs_.end(), 1)) + num_before;
    if (num_rows != num_outputs || end == outputs_.end() || *end == 0) {
        throw DecodeError("this llama.cpp does not show the hidden states of the " + name_);
    }
    return num_before;
}

void Decoder::copy_states(std::size_t first, std::size_t count, std::vector<float> & out) const {
    for (std::size_t token = first; token < first + count; ++token) {
        for (std::size_t i = 0; i < hidden_.num_given(); ++i) {
            const std::vector<float> & values = hidden_.taps->values(i);
            const std::size_t row = row_of(place_in_batch(token), values.size() / hidden_.width);
            const float * const state = values.data() + row * hidden_.width;
            out.insert(out.end(), state, state + hidden_.width);
        }
    }
}

// The branches share the cells of the text: no data is copied. This takes 0.1 to 0.2 ms for each branch of 1,000
// tokens. Between two batches the memory holds the text alone.
int32_t Decoder::decode_in_branches(const llama_batch & batch, const BatchPart & part) {
    const auto end = branch_ids_.end();
    std::for_each(branch_ids_.begin() + 1, end,
                  [&](int32_t branch) { api_->llama_memory_seq_cp(memory_, part.seq_id, branch, -1, -1); });
    const int32_t code = api_->llama_decode(context_, batch);
    std::for_each(branch_ids_.begin() + 1, end,
                  [&](int32_t branch) { api_->llama_memory_seq_rm(memory_, branch, -1, -1); });
    return code;
}

// Each layer has keys and values of its own, in the same cells. Before the next layer, the cells are emptied and filled
// again. This is one call, so that no other text takes the cells in between.
int32_t Decoder::decode_in_layers(const llama_batch & batch, const BatchPart * parts, std::size_t num_parts) {
    const bool all = parts[0].layer == all_layers;
    const int32_t first = all ? 0 : parts[0].layer;
    const int32_t last = all ? static_cast<int32_t>(num_layers()) - 1 : first;
    int32_t code = 0;
    for (int32_t layer = first; layer <= last && code == 0; ++layer) {
        for (std::size_t k = 0; layer > first && k < num_parts; ++k) {
            remove_behind(parts[k].seq_id, parts[k].position);
        }
        hidden_.choose_layer(context_, layer);
        code = api_->llama_decode(context_, batch);
    }
    return code;
}

int32_t Decoder::decode(const BatchPart * parts, std::size_t num_parts) {
    const DecodeUnderWay under_way;
    if (is_head()) {
        const int32_t code =
            hidden_.block ? inputs_.inject(context_, parts, num_parts) : inputs_.collect(context_, parts, num_parts);
        if (code != 0) {
            return code;
        }
    }
    lay_out(parts, num_parts);
    if (tokens_.empty()) {
        num_decoded_ += num_tokens(parts, num_parts);
        num_batches_ += 1;
        return 0;
    }
    const llama_batch batch = {
        static_cast<int32_t>(tokens_.size()),
        tokens_.data(),
        is_head() && !hidden_.block ? inputs_.data() : nullptr,
        positions_.data(),
        sequence_counts_.data(),
        sequence_pointers_.data(),
        outputs_.data(),
    };
    const std::optional<TokenList> listed = listed_by_all(parts, num_parts, n_vocab_);
    WantedPanels wanted = panels_of(listed, n_vocab_, hidden_.encodes);
    std::optional<Taps::Reading> reading;
    if (std::any_of(parts, parts + num_parts, [](const BatchPart & part) { return part.keeps_states; })) {
        reading.emplace(*hidden_.taps);
    }
    const PanelsOfThread wanting(wanted.count > 0 ? &wanted : nullptr);
    operations_seen = {};
    // While embeddings are on, some models compute no logits, others compute all of them, and pooling may end the
    // process. So they are off during a decode; the owner of the context uses them between two texts.
    if (embeds_) {
        api_->llama_set_embeddings(context_, false);
    }
    const int32_t code = num_layers() > 1                ? decode_in_layers(batch, parts, num_parts)
                         : num_branch_rows(parts[0]) > 0 ? decode_in_branches(batch, parts[0])
                                                         : api_->llama_decode(context_, batch);
    if (embeds_) {
        api_->llama_set_embeddings(context_, true);
    }
    saw_ours_ = saw_ours_ || operations_seen.ours;
    saw_foreign_ = saw_foreign_ || operations_seen.foreign;
    if (code == 0) {
        api_->llama_synchronize(context_);  // a GPU backend returns before it has finished
        sort_rows();
        num_decoded_ += num_tokens(parts, num_parts);
        num_batches_ += 1;
        if (wanted.count > 0) {
            skipping_ = wanted.was_obeyed ? Skipping::yes : Skipping::no;
        }
    }
    return code;
}

// llama.cpp may have computed the rows in another order. It sorts them when it is asked for the first one: here, before
// several texts ask in their own threads.
void Decoder::sort_rows() {
    const auto wanted = std::find(outputs_.begin(), outputs_.end(), 1);
    if (is_shared_ && wanted != outputs_.end()) {
        api_->llama_get_logits_ith(context_, static_cast<int32_t>(wanted - outputs_.begin()));
    }
}

float * Decoder::logits(std::size_t i) {
    require_open();
    float * row = api_->llama_get_logits_ith(context_, static_cast<int32_t>(place_in_batch(i)));
    if (row == nullptr) {
        throw DecodeError("the " + name_ + " has no logits: was it created with embedding=True?");
    }
    return row;
}

Decoder::Use::Use(Decoder & decoder, const std::function<void()> * poll)
    : decoder_(decoder.is_shared() ? nullptr : &decoder) {
    if (decoder_ == nullptr) {
        return;
    }
    if (decoder_->in_use_.exchange(true)) {
        throw BusyError("the " + decoder_->name_ +
                        " Llama is generating already, in another thread or around this call (of a logits processor, "
                        "say): wait for it, or create one Llama for each");
    }
    decoder_->interruption_->ask(poll);
}

Decoder::Use::~Use() {
    if (decoder_ != nullptr) {
        decoder_->interruption_->ask(nullptr);
        decoder_->in_use_.store(false);
    }
}

}  // namespace specllama
