#include "ggml_plugin/state_update.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml/tensors.hpp"
#include "ggml_plugin/long_rows.hpp"

namespace specllama {

namespace {

// The sources of the operations, by their places.
enum DeltaNetSource { kQuery, kKey, kValue, kGate, kBeta, kState };
enum ScanSource { kStates, kX, kDt, kA, kB, kC, kIds };

// What is noted for a graph is kept in the last words of the parameters of its operations, which ggml does not use and
// which llama.cpp clears when it makes a graph.
constexpr int kReadersWord = 15;  // of GET_ROWS
constexpr int32_t kReadByUpdate = 1;
constexpr int32_t kReadByOthers = 2;
constexpr int kCopyWords = 12;   // of the update: the CPY of its states, a pointer
constexpr int kOthersWord = 14;  // of the update: whether something else reads its states
constexpr int kCopiedWord = 15;  // of the update: whether its states are in their place

constexpr int64_t kMostLength = 256;

bool has_shape(const ggml::Tensor * tensor, int64_t first, int64_t second, int64_t third, int64_t fourth) {
    return is_rows(tensor, ggml::kFloat) && tensor->ne[0] == first && tensor->ne[1] == second &&
           tensor->ne[2] == third && tensor->ne[3] == fourth;
}

int64_t slots_of(const ggml::Tensor * op) { return std::max<int64_t>(op->op_params[0], 1); }

// Keys or queries: one for some heads, and for all texts or each.
bool are_for_heads(const ggml::Tensor * tensor, int64_t length, int64_t heads, int64_t tokens, int64_t texts) {
    return is_rows(tensor, ggml::kFloat) && tensor->ne[0] == length && heads % tensor->ne[1] == 0 &&
           tensor->ne[2] == tokens && texts % tensor->ne[3] == 0;
}

bool fits_delta_net(const ggml::Tensor * op) {
    const ggml::Tensor * value = op->src[kValue];
    const ggml::Tensor * gate = op->src[kGate];
    const ggml::Tensor * state = op->src[kState];
    if (!is_rows(value, ggml::kFloat) || !is_rows(gate, ggml::kFloat) || state == nullptr) {
        return false;
    }
    const int64_t length = value->ne[0];
    const int64_t heads = value->ne[1];
    const int64_t tokens = value->ne[2];
    const int64_t texts = value->ne[3];
    return length % kernels::kFloatLanes == 0 && length <= kMostLength &&
           has_shape(state, length, length, heads, texts) && is_whole(state) &&
           are_for_heads(op->src[kQuery], length, heads, tokens, texts) &&
           are_for_heads(op->src[kKey], length, heads, tokens, texts) && (gate->ne[0] == 1 || gate->ne[0] == length) &&
           has_shape(gate, gate->ne[0], heads, tokens, texts) && has_shape(op->src[kBeta], 1, heads, tokens, texts) &&
           is_rows(op, ggml::kFloat) && is_whole(op) &&
           count_of(op) == length * heads * (tokens + slots_of(op) * length) * texts;
}

bool fits_scan(const ggml::Tensor * op) {
    const ggml::Tensor * states = op->src[kStates];
    const ggml::Tensor * x = op->src[kX];
    const ggml::Tensor * dt = op->src[kDt];
    const ggml::Tensor * ids = op->src[kIds];
    if (!is_rows(states, ggml::kFloat) || !is_rows(x, ggml::kFloat) || dt == nullptr) {
        return false;
    }
    const int64_t length = states->ne[0];
    const int64_t rows = x->ne[0];
    const int64_t heads = x->ne[1];
    const int64_t tokens = x->ne[2];
    const int64_t texts = x->ne[3];
    return length % kernels::kFloatLanes == 0 && length <= kMostLength && rows > 0 && states->ne[1] == rows &&
           states->ne[2] == heads && is_whole(states) && has_shape(dt, heads, tokens, texts, 1) &&
           has_shape(op->src[kA], 1, heads, 1, 1) && are_for_heads(op->src[kB], length, heads, tokens, texts) &&
           are_for_heads(op->src[kC], length, heads, tokens, texts) && is_rows(ids, ggml::kInt32) &&
           ids->ne[0] == texts && is_rows(op, ggml::kFloat) && is_whole(op) &&
           count_of(op) == rows * heads * (tokens + slots_of(op) * length) * texts;
}

// The GET_ROWS that gathers a delta net's states; null if they come from elsewhere.
ggml::Tensor * choice_of(const ggml::Tensor * op) {
    ggml::Tensor * state = op->src[kState];
    ggml::Tensor * whole = state->view_src == nullptr ? state : state->view_src;
    return state->view_offs == 0 && count_of(state) == count_of(whole) && is_whole(whole) && is_choice_of_rows(whole)
               ? whole
               : nullptr;
}

const float * floats_at(const ggml::Tensor * tensor, int64_t first, int64_t second, int64_t third) {
    return reinterpret_cast<const float *>(at(tensor, first, second, third));
}

// The values of a delta net, or the inputs of a scan: as many numbers as there are results.
const ggml::Tensor * values_of(StateUpdate::Kind kind, const ggml::Tensor * op) {
    return op->src[kind == StateUpdate::Kind::scan ? static_cast<int>(kX) : kValue];
}

ggml::Tensor * copy_of(const ggml::Tensor * op) {
    std::uintptr_t address = 0;
    std::memcpy(&address, op->op_params + kCopyWords, sizeof address);
    return reinterpret_cast<ggml::Tensor *>(address);
}

void set_copy(ggml::Tensor * op, ggml::Tensor * copy) {
    const auto address = reinterpret_cast<std::uintptr_t>(copy);
    std::memcpy(op->op_params + kCopyWords, &address, sizeof address);
}

// Whether the batch has all texts whose states llama.cpp moves: `chosen`, the numbers of its states' rows, are all that
// there are. If not, states are moved between the operations that gather a batch's states and those that write new
// ones.
bool moves_no_further_state(const ggml::Tensor * chosen) {
    return chosen->view_src != nullptr && chosen->view_src->ne[0] == chosen->ne[0];
}

float softplus(float x) { return x > 20.0F ? x : std::log(1.0F + std::exp(x)); }

}  // namespace

bool are_states_copied(const ggml::Tensor * update, const ggml::Tensor * copy) {
    return update->op_params[kCopiedWord] != 0 && copy_of(update) == copy;
}

bool reads_states(StateUpdate::Kind kind, const ggml::Tensor * update, const ggml::Tensor * source) {
    const auto results = static_cast<std::size_t>(count_of(values_of(kind, update)));
    return source == update || source->view_offs >= results * sizeof(float);
}

void note_other_reader_of_states(ggml::Tensor * update) {
    if (update->op_params[kOthersWord] == 0) {
        update->op_params[kOthersWord] = 1;
    }
}

void plan_choice_of_states(ggml::Tensor * choice) { choice->op_params[kReadersWord] = 0; }

void note_other_reader(ggml::Tensor * choice) {
    if ((choice->op_params[kReadersWord] & kReadByOthers) == 0) {
        choice->op_params[kReadersWord] |= kReadByOthers;
    }
}

bool are_read_by_update(const ggml::Tensor * choice) { return (choice->op_params[kReadersWord] & kReadByUpdate) != 0; }

bool are_rows_read_in_place(const ggml::Tensor * choice) {
    return choice->op_params[kReadersWord] == kReadByUpdate && moves_no_further_state(choice->src[1]);
}

StateUpdate::StateUpdate(const kernels::FloatKernels & kernels, Kind kind, ggml::Tensor * op)
    : kernels_(kernels),
      kind_(kind),
      op_(op),
      values_(values_of(kind, op)),
      keys_(op->src[kind == Kind::scan ? static_cast<int>(kB) : kKey]),
      queries_(op->src[kind == Kind::scan ? static_cast<int>(kC) : kQuery]),
      length_(keys_->ne[0]),
      rows_(values_->ne[0]),
      heads_(values_->ne[1]),
      tokens_(values_->ne[2]),
      texts_(values_->ne[3]),
      head_floats_(rows_ * length_),
      state_floats_(heads_ * head_floats_) {}

bool StateUpdate::fits(Kind kind, const ggml::Tensor * op) {
    return kind == Kind::scan ? fits_scan(op) : fits_delta_net(op);
}

const ggml::Tensor * StateUpdate::made_by_weights(Kind kind, const ggml::Tensor * op) {
    return op->src[kind == Kind::scan ? static_cast<int>(kDt) : kGate];
}

void StateUpdate::plan() const {
    set_copy(op_, nullptr);
    op_->op_params[kOthersWord] = 0;
    op_->op_params[kCopiedWord] = 0;
    if (kind_ == Kind::delta_net) {
        if (ggml::Tensor * choice = choice_of(op_)) {
            choice->op_params[kReadersWord] |= kReadByUpdate;
        }
    }
}

void StateUpdate::plan_copy(ggml::Tensor * copy) const {
    const auto results = static_cast<std::size_t>(rows_ * heads_ * tokens_ * texts_);
    if (copy->src[0]->view_src == op_ && copy->src[0]->view_offs == results * sizeof(float) &&
        has_shape(copy, state_floats_, texts_, num_slots(), 1) && count_of(copy->src[0]) == count_of(copy) &&
        copy_of(op_) == nullptr) {
        set_copy(op_, copy);
    } else if (reads_states(kind_, op_, copy->src[0])) {
        note_other_reader_of_states(op_);
    }
}

int64_t StateUpdate::num_slots() const { return std::min(tokens_, slots_of(op_)); }

const float * StateUpdate::state_of(int64_t text) const {
    if (kind_ == Kind::scan) {
        const ggml::Tensor * states = op_->src[kStates];
        return floats_at(states, 0, 0, static_cast<const int32_t *>(op_->src[kIds]->data)[text]);
    }
    const ggml::Tensor * choice = choice_of(op_);
    if (choice == nullptr || !are_rows_read_in_place(choice)) {
        return floats_at(op_->src[kState], 0, 0, text);
    }
    // GET_ROWS has left the numbers of the rows here: the memory that they came in may be in use again.
    return floats_at(choice->src[0], static_cast<const int32_t *>(choice->data)[text], 0, 0);
}

float * StateUpdate::new_state_of(int64_t text, int64_t slot, bool in_place) const {
    if (in_place) {
        return reinterpret_cast<float *>(at(copy_of(op_), text, slot, 0));
    }
    float * states = static_cast<float *>(op_->data) + rows_ * heads_ * tokens_ * texts_;
    return states + (slot * texts_ + text) * state_floats_;
}

// Whether the states go to the rows of a CPY and nowhere else, and none of them to a row that another text is still to
// be read from.
bool StateUpdate::can_write_in_place() const {
    if (copy_of(op_) == nullptr || op_->op_params[kOthersWord] != 0 ||
        (kind_ == Kind::scan && !moves_no_further_state(op_->src[kIds]))) {
        return false;
    }
    for (int64_t from = 0; from < texts_; ++from) {
        for (int64_t to = 0; to < texts_; ++to) {
            for (int64_t slot = 0; slot < num_slots(); ++slot) {
                if (from != to && state_of(from) == new_state_of(to, slot, true)) {
                    return false;
                }
            }
        }
    }
    return true;
}

void StateUpdate::compute(const ggml::ComputeParams & params) const {
    const bool in_place = can_write_in_place();
    if (params.ith == 0) {
        op_->op_params[kCopiedWord] = in_place ? 1 : 0;
    }
    const int64_t units = heads_ * texts_;
    for (int64_t unit = units * params.ith / params.nth; unit < units * (params.ith + 1) / params.nth; ++unit) {
        update(unit / heads_, unit % heads_, in_place);
    }
}

void StateUpdate::update(int64_t text, int64_t head, bool in_place) const {
    float decays[kernels::kMostSteps][kMostLength];
    kernels::StateStep steps[kernels::kMostSteps];
    const ggml::Tensor * gate = op_->src[kGate];
    const bool is_delta = kind_ == Kind::delta_net;
    const int64_t num_decays = is_delta ? gate->ne[0] : 1;
    const int64_t key_text = text / (texts_ / keys_->ne[3]);
    const int64_t query_text = text / (texts_ / queries_->ne[3]);
    // Heads share keys in turn in a delta net, and neighbouring heads share them in a scan.
    const int64_t key_head = is_delta ? head % keys_->ne[1] : head / (heads_ / keys_->ne[1]);
    const int64_t query_head = is_delta ? head % queries_->ne[1] : head / (heads_ / queries_->ne[1]);
    kernels::HeadState state = {};
    state.from = state_of(text) + head * head_floats_;
    state.to = new_state_of(text, 0, in_place) + head * head_floats_;
    state.rows = rows_;
    state.length = length_;
    state.scale = is_delta ? 1.0F / std::sqrt(static_cast<float>(length_)) : 1.0F;
    state.is_delta = is_delta;
    state.has_decays = num_decays > 1;
    for (int64_t first = 0; first < tokens_; first += kernels::kMostSteps) {
        const auto count = static_cast<int>(std::min<int64_t>(kernels::kMostSteps, tokens_ - first));
        for (int i = 0; i < count; ++i) {
            const int64_t token = first + i;
            const int64_t slot = tokens_ - 1 - token;
            kernels::StateStep & step = steps[i];
            if (is_delta) {
                const float * gates = floats_at(gate, head, token, text);
                std::transform(gates, gates + num_decays, decays[i], [](float x) { return std::exp(x); });
                step.rate = *floats_at(op_->src[kBeta], head, token, text);
            } else {
                step.rate = softplus(floats_at(op_->src[kDt], token, text, 0)[head]);
                decays[i][0] = std::exp(step.rate * *floats_at(op_->src[kA], head, 0, 0));
            }
            step.decays = decays[i];
            step.key = floats_at(keys_, key_head, token, key_text);
            step.query = floats_at(queries_, query_head, token, query_text);
            step.values = floats_at(values_, head, token, text);
            step.out = static_cast<float *>(op_->data) + ((text * tokens_ + token) * heads_ + head) * rows_;
            step.kept =
                slot > 0 && slot < num_slots() ? new_state_of(text, slot, in_place) + head * head_floats_ : nullptr;
        }
        kernels_.update_state(state, steps, count);
        state.from = state.to;
    }
}

}  // namespace specllama
