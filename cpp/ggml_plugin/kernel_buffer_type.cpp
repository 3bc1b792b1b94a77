#include "ggml_plugin/kernel_buffer_type.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

#include "batch_invariance.hpp"
#include "ggml_plugin/cache_product.hpp"
#include "ggml_plugin/flash_attention.hpp"
#include "ggml_plugin/memory_pages.hpp"
#include "ggml_plugin/product.hpp"
#include "kernels/pack.hpp"

namespace specllama {

KernelBufferType * KernelBufferType::the_one_ = nullptr;

namespace {

thread_local bool taking = false;
thread_local std::size_t loaded = 0;

[[noreturn]] void differs(const std::string & what) {
    throw std::runtime_error("this llama.cpp is built otherwise than is known here: " + what);
}

void require(bool holds, const char * what) {
    if (!holds) {
        differs(what);
    }
}

void pack_in_threads(kernels::QuantizedType type, const uint8_t * rows, int64_t num_rows, int64_t columns,
                     uint8_t * panels) {
    constexpr int64_t kWorthAThread = 1 << 20;  // values: some milliseconds
    const int64_t num_panels = (num_rows + kernels::kPanelRows - 1) / kernels::kPanelRows;
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), 16));
    const int64_t count = std::clamp<int64_t>(num_rows * columns / kWorthAThread, 1, most);
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(count));
    for (int64_t i = 1; i < count; ++i) {
        threads.emplace_back(kernels::pack, type, rows, num_rows, columns, num_panels * i / count,
                             num_panels * (i + 1) / count, panels);
    }
    kernels::pack(type, rows, num_rows, columns, 0, num_panels / count, panels);
    for (std::thread & thread : threads) {
        thread.join();
    }
}

}  // namespace

KernelBufferType::KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses,
                                   const kernels::InstructionSet & set)
    : api_(addresses), set_(set) {
    learn_tensors();
    learn_buffers();
    type_.iface = {name, allocate, alignment, nullptr, allocated_size, nullptr};
    type_.device = api_.ggml_backend_buft_get_device(api_.ggml_backend_cpu_buffer_type());
    type_.context = static_cast<ggml::ExtraBufferType *>(this);
    the_one_ = this;
}

void KernelBufferType::offer(std::uintptr_t list) {
    auto & types = reinterpret_cast<std::vector<ggml::BufferType *> & (*)()>(list)();
    if (std::find(types.begin(), types.end(), &type_) == types.end()) {
        types.insert(types.begin(), &type_);
    }
}

void KernelBufferType::take_weights(bool take) { taking = take; }

std::size_t KernelBufferType::bytes_loaded() { return loaded; }

// A product is made as llama.cpp makes one, and looked at.
void KernelBufferType::learn_tensors() {
    require(api_.ggml_tensor_overhead() >= sizeof(ggml::Tensor), "a tensor is smaller");
    void * context = api_.ggml_init({8 * api_.ggml_tensor_overhead() + 4096, nullptr, true});
    require(context != nullptr, "ggml_init gave no context");
    try {
        learn_types(context);
        learn_attention(context);
    } catch (...) {
        api_.ggml_free(context);
        throw;
    }
    api_.ggml_free(context);
}

void KernelBufferType::learn_types(void * context) {
    ggml::Tensor * weights = api_.ggml_new_tensor_2d(context, ggml::kFloat, 96, 5);
    ggml::Tensor * x = api_.ggml_new_tensor_2d(context, ggml::kFloat, 96, 3);
    ggml::Tensor * product = api_.ggml_mul_mat(context, weights, x);
    api_.ggml_set_name(product, "specllama");
    product->data = &type_;
    require(weights->type == ggml::kFloat && weights->ne[0] == 96 && weights->ne[1] == 5 && weights->ne[2] == 1 &&
                weights->ne[3] == 1 && weights->nb[0] == 4 && weights->nb[1] == 384 && weights->buffer == nullptr,
            "a tensor's shape is elsewhere");
    require(product->src[0] == weights && product->src[1] == x && product->src[2] == nullptr,
            "a tensor's sources are elsewhere");
    require(api_.ggml_get_name(product) == product->name && std::strcmp(product->name, "specllama") == 0,
            "a tensor's name is elsewhere");
    require(api_.ggml_get_data(product) == &type_ && product->view_src == nullptr && product->extra == nullptr,
            "a tensor's data are elsewhere");
    require(std::strcmp(api_.ggml_op_name(product->op), "MUL_MAT") == 0, "a tensor's operation is elsewhere");
    mul_mat_ = product->op;
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        const kernels::Layout layout = kernels::layout_of(static_cast<kernels::QuantizedType>(i));
        const char * found = api_.ggml_type_name(layout.number);
        const auto same = [](char a, char b) { return (a | 32) == (b | 32); };  // ggml has q4_K
        const std::string expected = kernels::kTypeNames[i];
        require(found != nullptr && std::strlen(found) == expected.size() &&
                    std::equal(expected.begin(), expected.end(), found, same) &&
                    api_.ggml_type_size(layout.number) == static_cast<std::size_t>(layout.block_bytes),
                kernels::kTypeNames[i]);
        types_[layout.number] = static_cast<kernels::QuantizedType>(i);
    }
}

void KernelBufferType::learn_attention(void * context) {
    ggml::Tensor * q = api_.ggml_new_tensor_3d(context, ggml::kFloat, 32, 5, 4);
    ggml::Tensor * k = api_.ggml_new_tensor_3d(context, ggml::kHalf, 32, 64, 2);
    ggml::Tensor * v = api_.ggml_new_tensor_3d(context, ggml::kHalf, 48, 64, 2);
    ggml::Tensor * mask = api_.ggml_new_tensor_2d(context, ggml::kHalf, 64, 64);
    const ggml::Tensor * attention = api_.ggml_flash_attn_ext(context, q, k, v, mask, 0.25F, 0.0F, 0.0F);
    constexpr std::array<float, 3> expected{0.25F, 0.0F, 0.0F};
    std::array<float, 3> found{};
    std::memcpy(found.data(), attention->op_params, sizeof found);
    require(std::strcmp(api_.ggml_op_name(attention->op), "FLASH_ATTN_EXT") == 0 && attention->src[0] == q &&
                attention->src[1] == k && attention->src[2] == v && attention->src[3] == mask &&
                attention->src[4] == nullptr && attention->ne[0] == 48 && attention->ne[1] == 4 &&
                attention->ne[2] == 5 && found == expected && FlashAttention::fits(attention),
            "attention is described otherwise");
    flash_attention_ = attention->op;
}

// Which functions a buffer has follows from where its type stands.
void KernelBufferType::learn_buffers() {
    ggml::BufferType * cpu = api_.ggml_backend_cpu_buffer_type();
    require(cpu != nullptr && cpu->iface.get_name != nullptr && cpu->iface.alloc_buffer != nullptr &&
                cpu->iface.get_name(cpu) == api_.ggml_backend_buft_name(cpu) &&
                cpu->device == api_.ggml_backend_buft_get_device(cpu),
            "a buffer type's functions are elsewhere");
    ggml::Buffer * buffer = api_.ggml_backend_buft_alloc_buffer(cpu, 4096);
    require(buffer != nullptr, "no buffer can be allocated");
    auto * words = reinterpret_cast<void **>(buffer);
    for (const int count : ggml::kNumFunctions) {
        if (words[count] == cpu) {
            num_functions_ = count;
            break;
        }
    }
    const bool known = num_functions_ != 0 && api_.ggml_backend_buffer_get_type(buffer) == cpu &&
                       api_.ggml_backend_buffer_get_base(buffer) ==
                           reinterpret_cast<void * (*)(ggml::Buffer *)>(words[ggml::kGetBase])(buffer);
    api_.ggml_backend_buffer_free(buffer);
    require(known, "a buffer's functions are elsewhere");
}

const char * KernelBufferType::name(ggml::BufferType * /*type*/) { return kName; }

std::size_t KernelBufferType::alignment(ggml::BufferType * /*type*/) { return 64; }

std::size_t KernelBufferType::allocated_size(ggml::BufferType * /*type*/, const ggml::Tensor * tensor) {
    const auto type = the_one_->type_of(tensor);
    if (!type) {
        return the_one_->api_.ggml_nbytes(tensor);
    }
    return kernels::packed_bytes(*type, tensor->ne[1], tensor->ne[0]);
}

// A buffer of the CPU's own, whose tensors are written by us.
ggml::Buffer * KernelBufferType::allocate(ggml::BufferType * type, std::size_t size) {
    const ggml::Api & api = the_one_->api_;
    ggml::Buffer * buffer = api.ggml_backend_buft_alloc_buffer(api.ggml_backend_cpu_buffer_type(), size);
    if (buffer == nullptr) {
        return nullptr;
    }
    auto * words = reinterpret_cast<void **>(buffer);
    words[the_one_->num_functions_] = type;
    words[ggml::kSetTensor] = reinterpret_cast<void *>(&set_tensor);
    words[ggml::kGetTensor] = nullptr;
    words[the_one_->num_functions_ - ggml::kCopyTensorFromEnd] = nullptr;
    prefer_large_pages(api.ggml_backend_buffer_get_base(buffer), size);
    loaded += api.ggml_backend_buffer_get_size(buffer);
    return buffer;
}

std::optional<kernels::QuantizedType> KernelBufferType::type_of(const ggml::Tensor * tensor) const {
    const auto found = types_.find(tensor->type);
    if (found == types_.end() || tensor->ne[2] != 1 || tensor->ne[3] != 1 || tensor->ne[1] < 1 ||
        !kernels::fits(found->second, tensor->ne[0])) {
        return std::nullopt;
    }
    return found->second;
}

bool KernelBufferType::is_ours(const ggml::Tensor * weights) const {
    return weights != nullptr && weights->buffer != nullptr &&
           reinterpret_cast<void **>(weights->buffer)[num_functions_] == &type_;
}

bool KernelBufferType::can_multiply(const ggml::Tensor * op) const {
    const ggml::Tensor * x = op->src[1];
    return op->op == mul_mat_ && is_ours(op->src[0]) && type_of(op->src[0]) && x != nullptr &&
           x->type == ggml::kFloat && x->nb[0] == 4 && x->ne[0] == op->src[0]->ne[0] && op->type == ggml::kFloat &&
           op->nb[0] == 4;
}

// Asked by llama.cpp, before it puts a tensor into a buffer of this type, with one that has no room; and by ggml's
// scheduler, with the real one.
bool KernelBufferType::supports_op(void * /*device*/, const ggml::Tensor * op) {
    if (!can_multiply(op) || (api_.ggml_backend_buffer_get_size(op->src[0]->buffer) == 0 && !taking)) {
        return false;
    }
    ggml::Buffer * buffer = op->src[1]->buffer;
    return buffer == nullptr || api_.ggml_backend_buft_is_host(api_.ggml_backend_buffer_get_type(buffer));
}

// Asked for every operation of every graph, before it is planned and by each thread before it is computed.
ggml::TensorTraits * KernelBufferType::get_tensor_traits(const ggml::Tensor * op) {
    switch (task_of(op)) {
        case Task::weights:
            operations_seen.ours = true;
            return this;
        case Task::cache_product:
        case Task::flash_attention:
            return this;
        case Task::none:
            operations_seen.foreign |= !is_row_by_row(op);
            return nullptr;
    }
    return nullptr;
}

KernelBufferType::Task KernelBufferType::task_of(const ggml::Tensor * op) const {
    if (op->op == flash_attention_) {
        return FlashAttention::fits(op) && comes_from_ours(op->src[0]) ? Task::flash_attention : Task::none;
    }
    if (op->op != mul_mat_) {
        return Task::none;
    }
    if (can_multiply(op)) {
        return Task::weights;
    }
    return CacheProduct::fits(op) && comes_from_ours(op->src[1]) ? Task::cache_product : Task::none;
}

// Whether the model whose graph this is has our kernels: queries are made from a product of its weights.
bool KernelBufferType::comes_from_ours(const ggml::Tensor * tensor) const {
    constexpr int kFar =
        64;  // operations. There are about ten, with two products on the way to the second of attention
    for (int i = 0; i < kFar && tensor != nullptr; ++i) {
        if (tensor->op != mul_mat_) {
            tensor = tensor->src[0];
        } else if (is_ours(tensor->src[0])) {
            return true;
        } else {
            tensor = tensor->src[1];
        }
    }
    return false;
}

// What ggml computes row by row, each in the same way, however many there are.
bool KernelBufferType::is_row_by_row(const ggml::Tensor * op) const {
    constexpr const char * kNames[] = {"NONE", "RESHAPE",  "VIEW",  "PERMUTE",  "TRANSPOSE", "CONT",  "CPY",
                                       "DUP",  "SET_ROWS", "ADD",   "GET_ROWS", "MUL",       "SCALE", "RMS_NORM",
                                       "NORM", "ROPE",     "UNARY", "GLU",      "SOFT_MAX"};
    enum : uint8_t { unknown, yes, no };
    thread_local std::array<uint8_t, 256> known = {};  // by the operation's number: names are slow to compare
    uint8_t & found = known[static_cast<uint8_t>(op->op)];
    if (found == unknown) {
        const char * name = api_.ggml_op_name(op->op);
        const auto is_it = [name](const char * other) { return std::strcmp(name, other) == 0; };
        found = std::any_of(std::begin(kNames), std::end(kNames), is_it) ? yes : no;
    }
    return found == yes;
}

bool KernelBufferType::work_size(int n_threads, const ggml::Tensor * op, std::size_t & size) {
    switch (task_of(op)) {
        case Task::weights:
            size = Product(set_, type_of(op->src[0]).value(), op).work_bytes();
            break;
        case Task::flash_attention:
            size = FlashAttention(set_.floats, op).work_bytes(n_threads);
            break;
        case Task::cache_product:
        case Task::none:
            size = 0;
            break;
    }
    return true;
}

bool KernelBufferType::compute_forward(ggml::ComputeParams * params, ggml::Tensor * op) {
    const auto wait = [&] { api_.ggml_barrier(params->threadpool); };
    switch (task_of(op)) {
        case Task::weights: {
            const Product product(set_, type_of(op->src[0]).value(), op);
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
        case Task::none:
            break;
    }
    return false;
}

void KernelBufferType::pack(const ggml::Tensor * tensor, const void * data) {
    pack_in_threads(type_of(tensor).value(), static_cast<const uint8_t *>(data), tensor->ne[1], tensor->ne[0],
                    static_cast<uint8_t *>(tensor->data));
}

// A tensor that comes in parts is packed when the last one is here.
void KernelBufferType::take_part(const ggml::Tensor * tensor, const void * data, std::size_t offset, std::size_t size) {
    const auto * bytes = static_cast<const uint8_t *>(data);
    std::vector<uint8_t> & parts = unfinished_[tensor];
    if (parts.size() < offset + size) {
        parts.resize(offset + size);
    }
    std::copy(bytes, bytes + size, parts.begin() + static_cast<std::ptrdiff_t>(offset));
    if (parts.size() == api_.ggml_nbytes(tensor)) {
        pack(tensor, parts.data());
        unfinished_.erase(tensor);
    }
}

void KernelBufferType::set_tensor(ggml::Buffer * /*buffer*/, ggml::Tensor * tensor, const void * data,
                                  std::size_t offset, std::size_t size) {
    if (offset == 0 && size == the_one_->api_.ggml_nbytes(tensor)) {
        the_one_->pack(tensor, data);
        let_go_of_file(data, size);  // llama.cpp keeps the file mapped where other tensors need it
    } else {
        the_one_->take_part(tensor, data, offset, size);
    }
}

}  // namespace specllama
