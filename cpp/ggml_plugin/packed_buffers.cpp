#include "ggml_plugin/packed_buffers.hpp"

#include <algorithm>
#include <thread>

#include "ggml_plugin/memory_pages.hpp"
#include "kernels/pack.hpp"

namespace specllama {

PackedBuffers * PackedBuffers::the_one_ = nullptr;

namespace {

thread_local std::size_t loaded = 0;

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

PackedBuffers::PackedBuffers(const ggml::Api & api, const ggml::Insides & insides, ggml::ExtraBufferType * owner)
    : api_(api), insides_(insides) {
    const auto set = [this](int place, auto * value) {
        words_[static_cast<std::size_t>(place)] = reinterpret_cast<void *>(value);
    };
    const ggml::BufferTypeLayout & layout = insides.buffer_type;
    set(layout.name, &name);
    set(layout.alloc_buffer, &allocate);
    set(layout.alignment, &alignment);
    set(layout.alloc_size, &allocated_size);
    set(layout.device, static_cast<char *>(api.ggml_backend_buft_get_device(api.ggml_backend_cpu_buffer_type())));
    set(layout.context(), owner);
    the_one_ = this;
}

bool PackedBuffers::hold(const ggml::Tensor * weights) const {
    return weights != nullptr && weights->buffer != nullptr &&
           reinterpret_cast<void **>(weights->buffer)[insides_.num_buffer_functions] ==
               static_cast<const void *>(words_.data());
}

std::size_t PackedBuffers::bytes_loaded() { return loaded; }

const char * PackedBuffers::name(ggml::BufferType * /*type*/) { return kName; }

std::size_t PackedBuffers::alignment(ggml::BufferType * /*type*/) { return 64; }

std::size_t PackedBuffers::allocated_size(ggml::BufferType * /*type*/, const ggml::Tensor * tensor) {
    const auto type = the_one_->insides_.type_of(tensor);
    return type ? static_cast<std::size_t>(tensor->ne[2]) * kernels::packed_bytes(*type, tensor->ne[1], tensor->ne[0])
                : the_one_->api_.ggml_nbytes(tensor);
}

// Allocates a buffer of the CPU backend, and replaces the functions that write its tensors by ours.
ggml::Buffer * PackedBuffers::allocate(ggml::BufferType * type, std::size_t size) {
    const ggml::Api & api = the_one_->api_;
    ggml::Buffer * buffer = api.ggml_backend_buft_alloc_buffer(api.ggml_backend_cpu_buffer_type(), size);
    if (buffer == nullptr) {
        return nullptr;
    }
    auto * words = reinterpret_cast<void **>(buffer);
    words[the_one_->insides_.num_buffer_functions] = type;
    words[ggml::kSetTensor] = reinterpret_cast<void *>(&set_tensor);
    words[ggml::kGetTensor] = nullptr;
    words[the_one_->insides_.num_buffer_functions - ggml::kCopyTensorFromEnd] = nullptr;
    prefer_large_pages(api.ggml_backend_buffer_get_base(buffer), size);
    loaded += api.ggml_backend_buffer_get_size(buffer);
    return buffer;
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

void PackedBuffers::set_tensor(ggml::Buffer * /*buffer*/, ggml::Tensor * tensor, const void * data, std::size_t offset,
                               std::size_t size) {
    if (offset == 0 && size == the_one_->api_.ggml_nbytes(tensor)) {
        the_one_->pack(tensor, data);
        // The packed copy replaces these bytes of the file, which llama.cpp keeps mapped where other tensors need it.
        let_go_of_file(data, size);
    } else {
        the_one_->take_part(tensor, data, offset, size);
    }
}

}  // namespace specllama
