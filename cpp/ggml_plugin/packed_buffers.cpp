#include "ggml_plugin/packed_buffers.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "ggml_plugin/memory_pages.hpp"
#include "ggml_plugin/stand_in.hpp"
#include "kernels/pack.hpp"

namespace specllama {

PackedBuffers * PackedBuffers::the_one_ = nullptr;

namespace {

constexpr std::size_t kAlignment = 64;

thread_local uint32_t taken = 0;  // a bit for each type
thread_local std::size_t loaded = 0;

// Reads a function of ggml's out of a structure.
template <class Function>
void read(Function & function, void ** words, int place) {
    function = reinterpret_cast<Function>(words[place]);
}

void pack_in_threads(kernels::QuantizedType type, const uint8_t * rows, int64_t num_rows, int64_t columns,
                     uint8_t * panels) {
    constexpr int64_t kWorthAThread = 1 << 20;  // values to pack in each thread: some milliseconds of work
    const int64_t num_panels = kernels::num_panels(num_rows);
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

PackedBuffers::PackedBuffers(const ggml::Api & api, const ggml::Insides & insides, ggml::BufferType * type)
    : api_(api), insides_(insides), type_(type) {
    const ggml::BufferTypeLayout & layout = insides.buffer_type;
    read(theirs_.allocate, words(), layout.alloc_buffer);
    read(theirs_.alignment, words(), layout.alignment);
    read(theirs_.allocated_size, words(), layout.alloc_size);
    ggml::Buffer * buffer = theirs_.allocate == nullptr ? nullptr : theirs_.allocate(type, kAlignment);
    bool known = buffer != nullptr && theirs_.alignment != nullptr && words()[layout.is_host] == nullptr &&
                 words()[layout.context()] != nullptr;
    for (const int place : {layout.alloc_buffer_n, layout.alloc_size_n}) {
        known = known && (place < 0 || words()[place] == nullptr);
    }
    if (buffer != nullptr) {
        auto ** functions = reinterpret_cast<void **>(buffer);
        read(theirs_.init_tensor, functions, ggml::kInitTensor);
        read(theirs_.set_tensor, functions, ggml::kSetTensor);
        known = known && theirs_.init_tensor != nullptr && theirs_.set_tensor != nullptr &&
                functions[insides.num_buffer_functions] == type;
        api.ggml_backend_buffer_free(buffer);
    }
    if (!known) {
        throw std::runtime_error(
            "this llama.cpp is built otherwise than is known here: CPU_REPACK has other functions");
    }
    the_one_ = this;
}

void PackedBuffers::take_place() {
    const ggml::BufferTypeLayout & layout = insides_.buffer_type;
    write_pointer(words() + layout.alignment, reinterpret_cast<void *>(&alignment));
    write_pointer(words() + layout.alloc_size, reinterpret_cast<void *>(&allocated_size));
    write_pointer(words() + layout.alloc_buffer, reinterpret_cast<void *>(&allocate));
}

// ggml leaves `extra` to the buffer of a tensor. Here it says that the tensor is packed.
bool PackedBuffers::hold(const ggml::Tensor * weights) const { return weights != nullptr && weights->extra == this; }

bool PackedBuffers::may_take_weights_of(const ggml::Tensor * op) const {
    return ggml::is_loading(api_, op) && taken_type(op->src[0]);
}

void PackedBuffers::take_weights(const std::vector<kernels::QuantizedType> & types) {
    static_assert(kernels::kNumTypes <= 32);
    taken = 0;
    for (const kernels::QuantizedType type : types) {
        taken |= 1U << static_cast<unsigned>(type);
    }
}

std::optional<kernels::QuantizedType> PackedBuffers::taken_type(const ggml::Tensor * tensor) const {
    const auto type = taken == 0 ? std::nullopt : insides_.type_of(tensor);
    return type && ((taken >> static_cast<unsigned>(*type)) & 1U) != 0 ? type : std::nullopt;
}

std::size_t PackedBuffers::bytes_loaded() { return loaded; }

std::size_t PackedBuffers::alignment(ggml::BufferType * type) {
    return std::max(the_one_->theirs_.alignment(type), taken != 0 ? kAlignment : 0);
}

std::size_t PackedBuffers::packed_size(const ggml::Tensor * tensor, kernels::QuantizedType type) const {
    return static_cast<std::size_t>(tensor->ne[2]) * kernels::packed_bytes(type, tensor->ne[1], tensor->ne[0]);
}

std::size_t PackedBuffers::allocated_size(ggml::BufferType * type, const ggml::Tensor * tensor) {
    if (const auto packed = the_one_->taken_type(tensor)) {
        return the_one_->packed_size(tensor, *packed);
    }
    const Functions & theirs = the_one_->theirs_;
    return theirs.allocated_size == nullptr ? the_one_->api_.ggml_nbytes(tensor) : theirs.allocated_size(type, tensor);
}

// Allocates a buffer of CPU_REPACK's, and replaces the functions that write its tensors by ours.
ggml::Buffer * PackedBuffers::allocate(ggml::BufferType * type, std::size_t size) {
    ggml::Buffer * buffer = the_one_->theirs_.allocate(type, size);
    if (buffer == nullptr || taken == 0) {
        return buffer;
    }
    auto * words = reinterpret_cast<void **>(buffer);
    words[ggml::kInitTensor] = reinterpret_cast<void *>(&init_tensor);
    words[ggml::kSetTensor] = reinterpret_cast<void *>(&set_tensor);
    prefer_large_pages(the_one_->api_.ggml_backend_buffer_get_base(buffer), size);
    return buffer;
}

int PackedBuffers::init_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor) {
    if (tensor->view_src == nullptr) {
        const auto type = the_one_->taken_type(tensor);
        if (!type) {
            return the_one_->theirs_.init_tensor(buffer, tensor);
        }
        loaded += the_one_->packed_size(tensor, *type);
    } else if (!the_one_->hold(tensor->view_src)) {
        return the_one_->theirs_.init_tensor(buffer, tensor);
    }
    tensor->extra = the_one_;
    return 0;  // GGML_STATUS_SUCCESS
}

// Experts whose rows fill whole panels are packed like one matrix, so that threads have enough to do.
void PackedBuffers::pack(const ggml::Tensor * tensor, const void * data) const {
    const kernels::QuantizedType type = insides_.type_of(tensor).value();
    const int64_t matrices = tensor->ne[1] % kernels::kPanelRows == 0 ? 1 : tensor->ne[2];
    const int64_t rows = tensor->ne[1] * tensor->ne[2] / matrices;
    const auto stride = static_cast<std::size_t>(rows) * tensor->nb[1];
    for (int64_t i = 0; i < matrices; ++i) {
        pack_in_threads(type, static_cast<const uint8_t *>(data) + static_cast<std::size_t>(i) * stride, rows,
                        tensor->ne[0],
                        static_cast<uint8_t *>(tensor->data) +
                            static_cast<std::size_t>(i) * kernels::packed_bytes(type, rows, tensor->ne[0]));
    }
}

// Collects a tensor that comes in parts, and packs it when the last part is there.
void PackedBuffers::take_part(const ggml::Tensor * tensor, const void * data, std::size_t offset, std::size_t size) {
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

void PackedBuffers::set_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor, const void * data, std::size_t offset,
                               std::size_t size) {
    if (!the_one_->hold(tensor)) {
        the_one_->theirs_.set_tensor(buffer, tensor, data, offset, size);
    } else if (offset == 0 && size == the_one_->api_.ggml_nbytes(tensor)) {
        the_one_->pack(tensor, data);
        // The packed copy replaces these bytes of the file, which llama.cpp keeps mapped where other tensors need it.
        let_go_of_file(data, size);
    } else {
        the_one_->take_part(tensor, data, offset, size);
    }
}

}  // namespace specllama
