#include "ggml_plugin/kernel_buffer_type.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "ggml_plugin/barrier.hpp"
#include "ggml_plugin/cache_product.hpp"
#include "ggml_plugin/expert_product.hpp"
#include "ggml_plugin/flash_attention.hpp"
#include "ggml_plugin/long_rows.hpp"
#include "ggml_plugin/product.hpp"
#include "ggml_plugin/spread_logits.hpp"
#include "kernels/this_decode.hpp"

namespace specllama {

namespace {

// Another of ggml's extra buffer types, which ggml asks before: it gets no weights that our kernels multiply.
class Behind : public StandIn {
public:
    explicit Behind(const KernelBufferType & ours) : ours_(ours) {}

    bool supports_op(void * device, const ggml::Tensor * op) override {
        return !ours_.takes_weights_of(op) && StandIn::supports_op(device, op);
    }

private:
    const KernelBufferType & ours_;
};

ggml::BufferType * type_named(const std::unordered_map<std::string, std::uintptr_t> & types, const char * name) {
    const auto found = types.find(name);
    if (found == types.end()) {
        throw std::runtime_error("this llama.cpp is built without CPU_REPACK (GGML_CPU_REPACK), whose place they take");
    }
    return reinterpret_cast<ggml::BufferType *>(found->second);
}

// The panels (of kPanelRows rows each) that this thread's decode needs of these weights; null: all panels.
const WantedPanels * wanted_of(const ggml::Tensor * weights) {
    // A model that uses one matrix for input and output has only token_embd.weight.
    constexpr const char * kOutputs[] = {"output.weight", "token_embd.weight"};
    const auto is_it = [weights](const char * name) { return std::strcmp(weights->name, name) == 0; };
    if (wanted_panels == nullptr || (wanted_panels->num_rows != 0 && wanted_panels->num_rows != weights->ne[1]) ||
        std::none_of(std::begin(kOutputs), std::end(kOutputs), is_it)) {
        return nullptr;
    }
    wanted_panels->was_obeyed = true;
    return wanted_panels;
}

bool wants_no_logit() { return wanted_panels != nullptr && wanted_panels->num_rows == 0; }

}  // namespace

KernelBufferType::KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses,
                                   std::uintptr_t registry,
                                   const std::unordered_map<std::string, std::uintptr_t> & types,
                                   const kernels::InstructionSet & set, bool updates_states)
    : api_(addresses),
      insides_(ggml::probe(api_, reinterpret_cast<const void *>(registry))),
      types_(types),
      set_(set),
      updates_states_(updates_states),
      buffers_(api_, insides_, type_named(types, kPlace)) {}

void KernelBufferType::take_place() {
    for (const auto & [name, address] : types_) {
        if (name != kPlace) {
            (new Behind(*this))->take_place_of(reinterpret_cast<ggml::BufferType *>(address), insides_);
        }
    }
    take_place_of(type(), insides_);
    buffers_.take_place();
}

std::vector<std::string> KernelBufferType::types() const {
    std::vector<std::string> names;
    names.reserve(insides_.types.size());
    for (const auto & [number, type] : insides_.types) {
        names.emplace_back(kernels::kTypeNames[static_cast<int>(type)]);
    }
    return names;
}

bool KernelBufferType::is_product(const ggml::Tensor * op) const {
    const ggml::Tensor * x = op->src[1];
    if ((op->op != insides_.mul_mat && op->op != insides_.mul_mat_id) || x == nullptr || x->type != ggml::kFloat ||
        x->nb[0] != 4 || x->ne[0] != op->src[0]->ne[0] || op->type != ggml::kFloat || op->nb[0] != 4) {
        return false;
    }
    return op->op == insides_.mul_mat_id ? ExpertProduct::fits(op) : Product::fits(op);
}

bool KernelBufferType::can_multiply(const ggml::Tensor * op) const {
    return buffers_.hold(op->src[0]) && is_product(op);
}

bool KernelBufferType::takes_weights_of(const ggml::Tensor * op) const {
    return buffers_.may_take_weights_of(op) && is_product(op);
}

// llama.cpp calls this before it puts a tensor into a buffer of this type, with an empty buffer. ggml's scheduler calls
// this function with the real buffer.
bool KernelBufferType::supports_op(void * device, const ggml::Tensor * op) {
    const bool can_be_ours = buffers_.hold(op->src[0]) || buffers_.may_take_weights_of(op);
    if (!can_be_ours) {
        return StandIn::supports_op(device, op);
    }
    ggml::Buffer * buffer = op->src[1] == nullptr ? nullptr : op->src[1]->buffer;
    return is_product(op) &&
           (buffer == nullptr || api_.ggml_backend_buft_is_host(api_.ggml_backend_buffer_get_type(buffer)));
}

// ggml calls this for every operation of every graph: once before it plans the operation, and in each thread before
// that thread computes the operation.
ggml::TensorTraits * KernelBufferType::get_tensor_traits(const ggml::Tensor * op) {
    note_readers(op);
    switch (task_of(op)) {
        case Task::weights:
        case Task::experts:
            operations_seen.ours = true;
            return this;
        case Task::cache_product:
        case Task::flash_attention:
        case Task::fill_logits:
        case Task::spread_logits:
        case Task::copy_rows:
        case Task::choose_rows:
        case Task::update_state:
            return this;
        case Task::none:
            operations_seen.foreign |= operation_of(op) == Operation::other && !turns_rows(op);
            break;
    }
    return StandIn::get_tensor_traits(op);
}

KernelBufferType::Task KernelBufferType::task_of(const ggml::Tensor * op) const {
    if (op->op == insides_.flash_attention) {
        return FlashAttention::fits(op) && comes_from_ours(op->src[0]) ? Task::flash_attention : Task::none;
    }
    if (op->op == insides_.mul_mat_id) {
        return can_multiply(op) ? Task::experts : Task::none;
    }
    if (op->op != insides_.mul_mat) {
        switch (operation_of(op)) {
            case Operation::fill:
                return is_fill_of_logits(op) ? Task::fill_logits : Task::none;
            case Operation::set_rows:
                return op->view_src != nullptr && operation_of(op->view_src) == Operation::fill &&
                               is_spread_of_logits(op)
                           ? Task::spread_logits
                           : Task::none;
            case Operation::copy:
                return is_copy_of_rows(op) && (op->ne[0] >= kLongRow || update_of(op)) ? Task::copy_rows : Task::none;
            case Operation::get_rows:
                return is_choice_of_rows(op) && (op->ne[0] >= kLongRow || are_read_by_update(op)) ? Task::choose_rows
                                                                                                  : Task::none;
            case Operation::delta_net:
            case Operation::scan:
                return update_kind(op) ? Task::update_state : Task::none;
            case Operation::row_by_row:
            case Operation::view:
            case Operation::other:
            case Operation::unknown:
                return Task::none;
        }
    }
    if (can_multiply(op)) {
        return Task::weights;
    }
    return CacheProduct::fits(op) && comes_from_ours(op->src[1]) ? Task::cache_product : Task::none;
}

// Whether the operation is the Hadamard transform that llama.cpp applies to queries and values for a cache of few bits.
// It transforms each row by itself, and multiplies no matrix.
bool KernelBufferType::turns_rows(const ggml::Tensor * op) const {
    constexpr int32_t kHadamard = 1;  // GGML_HINT_SRC0_IS_HADAMARD, of which only newer releases know
    return op->op == insides_.mul_mat && op->op_params[1] == kHadamard;
}

// Whether the tensor (the queries of attention) is computed from a product of our weights. If so, the model of this
// graph uses our kernels.
bool KernelBufferType::comes_from_ours(const ggml::Tensor * tensor) const {
    // The most operations that are followed back. From `tensor` to a product of weights there are about ten, two
    // products of attention among them.
    constexpr int kFar = 64;
    for (int i = 0; i < kFar && tensor != nullptr; ++i) {
        if (tensor->op != insides_.mul_mat) {
            tensor = tensor->src[0];
        } else if (buffers_.hold(tensor->src[0])) {
            return true;
        } else {
            tensor = tensor->src[1];
        }
    }
    return false;
}

// Results are kept by the operation's number, because names are slow to compare.
KernelBufferType::Operation KernelBufferType::operation_of(const ggml::Tensor * op) const {
    // The scans of recurrent layers take one token of a text after the other.
    constexpr const char * kRowByRow[] = {"NONE",  "CONT",     "DUP",    "ADD",     "SUB",     "MUL",
                                          "SCALE", "RMS_NORM", "NORM",   "L2_NORM", "ROPE",    "UNARY",
                                          "GLU",   "SOFT_MAX", "ADD_ID", "ARGSORT", "TOP_K",   "CLAMP",
                                          "DIV",   "SUM_ROWS", "CONCAT", "REPEAT",  "SSM_CONV"};
    constexpr const char * kViews[] = {"RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"};
    std::atomic<Operation> & known = operations_[static_cast<uint8_t>(op->op)];
    Operation found = known.load(std::memory_order_relaxed);
    if (found == Operation::unknown) {
        const char * name = api_.ggml_op_name(op->op);
        const auto is_it = [name](const char * other) { return std::strcmp(name, other) == 0; };
        found = is_it("FILL")                                                    ? Operation::fill
                : is_it("SET_ROWS")                                              ? Operation::set_rows
                : is_it("CPY")                                                   ? Operation::copy
                : is_it("GET_ROWS")                                              ? Operation::get_rows
                : is_it("GATED_DELTA_NET")                                       ? Operation::delta_net
                : is_it("SSM_SCAN")                                              ? Operation::scan
                : std::any_of(std::begin(kViews), std::end(kViews), is_it)       ? Operation::view
                : std::any_of(std::begin(kRowByRow), std::end(kRowByRow), is_it) ? Operation::row_by_row
                                                                                 : Operation::other;
        known.store(found, std::memory_order_relaxed);
        if (found == Operation::delta_net || found == Operation::scan) {
            has_states_ = true;
        }
    }
    return found;
}

std::optional<StateUpdate::Kind> KernelBufferType::update_kind(const ggml::Tensor * op) const {
    const Operation operation = operation_of(op);
    if (!updates_states_ || (operation != Operation::delta_net && operation != Operation::scan)) {
        return std::nullopt;
    }
    const auto kind = operation == Operation::scan ? StateUpdate::Kind::scan : StateUpdate::Kind::delta_net;
    const bool ours = StateUpdate::fits(kind, op) && comes_from_ours(StateUpdate::made_by_weights(kind, op));
    return ours ? std::optional(kind) : std::nullopt;
}

ggml::Tensor * KernelBufferType::update_of(const ggml::Tensor * copy) const {
    ggml::Tensor * from = copy->src[0]->view_src;
    return from != nullptr && update_kind(from) ? from : nullptr;
}

// Notes that an operation reads the rows of a GET_ROWS, or the new states of an update, unless it is one of those that
// know of each other: updates, and copies to rows.
void KernelBufferType::note_readers(const ggml::Tensor * op) const {
    if (!updates_states_ || !has_states_) {
        return;
    }
    const Operation operation = operation_of(op);
    if (operation == Operation::view) {
        return;
    }
    const bool is_update = operation == Operation::delta_net && update_kind(op);
    const bool is_copy = operation == Operation::copy && is_copy_of_rows(op);
    for (ggml::Tensor * source : op->src) {
        if (source == nullptr) {
            continue;
        }
        ggml::Tensor * whole = source->view_src == nullptr ? source : source->view_src;
        switch (operation_of(whole)) {
            case Operation::get_rows:
                if (!is_update && is_choice_of_rows(whole)) {
                    note_other_reader(whole);
                }
                break;
            case Operation::delta_net:
            case Operation::scan: {
                const std::optional<StateUpdate::Kind> kind = is_copy ? std::nullopt : update_kind(whole);
                if (kind && reads_states(*kind, whole, source)) {
                    note_other_reader_of_states(whole);
                }
                break;
            }
            default:
                break;
        }
    }
}

// ggml plans each graph before it computes it, and calls this for each of its operations in their order.
bool KernelBufferType::work_size(int n_threads, const ggml::Tensor * op, std::size_t & size) {
    auto * planned = const_cast<ggml::Tensor *>(op);
    size = 0;
    switch (task_of(op)) {
        case Task::weights:
            size = Product(set_, insides_.type_of(op->src[0]).value(), op).work_bytes();
            break;
        case Task::experts:
            size = ExpertProduct(set_, insides_.type_of(op->src[0]).value(), op).work_bytes(n_threads);
            break;
        case Task::flash_attention:
            size = FlashAttention(set_.floats, op).work_bytes(n_threads);
            break;
        case Task::copy_rows:
            if (ggml::Tensor * update = update_of(op)) {
                StateUpdate(set_.floats, update_kind(update).value(), update).plan_copy(planned);
            }
            break;
        case Task::choose_rows:
            plan_choice_of_states(planned);
            break;
        case Task::update_state:
            StateUpdate(set_.floats, update_kind(op).value(), planned).plan();
            break;
        case Task::cache_product:
        case Task::fill_logits:
        case Task::spread_logits:
        case Task::none:
            break;
    }
    return true;
}

bool KernelBufferType::compute_forward(ggml::ComputeParams * params, ggml::Tensor * op) {
    const auto wait = [&] {
        if (api_.ggml_barrier != nullptr) {
            api_.ggml_barrier(params->threadpool);
        } else {
            wait_for_all(*params, op);
        }
    };
    switch (task_of(op)) {
        case Task::weights: {
            const Product product(set_, insides_.type_of(op->src[0]).value(), op);
            product.quantize(*params, wanted_of(op->src[0]));
            wait();
            product.multiply(*params);
            return true;
        }
        case Task::experts: {
            const ExpertProduct product(set_, insides_.type_of(op->src[0]).value(), op);
            product.quantize(*params);
            wait();
            product.multiply(*params);
            return true;
        }
        case Task::cache_product:
            CacheProduct(set_.floats, op).compute(*params);
            return true;
        case Task::flash_attention:
            FlashAttention(set_.floats, op).compute(*params, wait);
            return true;
        // The first thread alone does this: it is little work, and the other threads do not know which logits are
        // wanted.
        case Task::fill_logits:
            if (params->ith == 0 && !wants_no_logit()) {
                fill_logits(op);
            }
            return true;
        case Task::spread_logits:
            if (params->ith == 0 && !wants_no_logit()) {
                spread_logits(op);
            }
            return true;
        case Task::copy_rows: {
            const ggml::Tensor * update = update_of(op);
            if (update == nullptr || !are_states_copied(update, op)) {
                copy_rows(*params, op);
            }
            return true;
        }
        case Task::choose_rows:
            if (!are_rows_read_in_place(op)) {
                choose_rows(*params, op);
            } else if (params->ith == 0) {
                const ggml::Tensor * chosen = op->src[1];
                std::memcpy(op->data, chosen->data, static_cast<std::size_t>(chosen->ne[0]) * sizeof(int32_t));
            }
            return true;
        case Task::update_state:
            StateUpdate(set_.floats, update_kind(op).value(), op).compute(*params);
            return true;
        case Task::none:
            break;
    }
    return false;
}

}  // namespace specllama
