#include "ggml_plugin/stand_in.hpp"

#include <atomic>
#include <stdexcept>

#include "kernels/this_decode.hpp"

// ggml's objects are called through our classes, which have the same virtual functions and other names. UBSan would
// report such calls.
#if defined(__GNUC__)
#define SPECLLAMA_CALLS_THEIRS __attribute__((no_sanitize("vptr")))
#else
#define SPECLLAMA_CALLS_THEIRS
#endif

namespace specllama {

void write_pointer(void ** place, void * value) {
    static_assert(sizeof(std::atomic<void *>) == sizeof(void *) && std::atomic<void *>::is_always_lock_free);
    reinterpret_cast<std::atomic<void *> *>(place)->store(value, std::memory_order_release);
}

SPECLLAMA_CALLS_THEIRS bool StandIn::supports_op(void * device, const ggml::Tensor * op) {
    return theirs_->supports_op(device, op);
}

SPECLLAMA_CALLS_THEIRS ggml::TensorTraits * StandIn::get_tensor_traits(const ggml::Tensor * op) {
    ggml::TensorTraits * traits = theirs_->get_tensor_traits(op);
    operations_seen.foreign |= traits != nullptr;
    return traits;
}

void StandIn::take_place_of(ggml::BufferType * type, const ggml::Insides & insides) {
    void ** place = reinterpret_cast<void **>(type) + insides.buffer_type.context();
    if (*place == nullptr) {
        throw std::runtime_error("this llama.cpp is built otherwise than is known here: a buffer type has no object");
    }
    theirs_ = static_cast<ggml::ExtraBufferType *>(*place);
    write_pointer(place, static_cast<ggml::ExtraBufferType *>(this));
}

bool NoWeights::supports_op(void * device, const ggml::Tensor * op) {
    return !ggml::is_loading(api_, op) && StandIn::supports_op(device, op);
}

}  // namespace specllama
