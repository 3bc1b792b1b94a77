// Objects that stand in for those of ggml's extra buffer types, such as AMX and CPU_REPACK.
//
// ggml asks the object of each such type which operations it computes, and whether it takes a model's weights. The
// types are C structs in writable memory, to which ggml_backend_dev_get_extra_bufts() gives pointers. Nothing else of
// ggml's is written.
#pragma once

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"

namespace specllama {

// Writes a pointer of ggml's that other threads may be reading: they find the old value or the new one.
void write_pointer(void ** place, void * value);

// Stands in for ggml's object, and asks it.
class StandIn : public ggml::ExtraBufferType {
public:
    bool supports_op(void * device, const ggml::Tensor * op) override;
    ggml::TensorTraits * get_tensor_traits(const ggml::Tensor * op) override;

    // Takes the place of the object of a buffer type, at any time: other threads may be loading models and computing.
    // May be called once. The object may not be destroyed then.
    // Throws std::runtime_error if the buffer type has no object.
    void take_place_of(ggml::BufferType * type, const ggml::Insides & insides);

private:
    ggml::ExtraBufferType * theirs_ = nullptr;
};

// A buffer type that gets no more weights. Those that it has are multiplied as before.
class NoWeights : public StandIn {
public:
    explicit NoWeights(const ggml::Api & api) : api_(api) {}
    bool supports_op(void * device, const ggml::Tensor * op) override;

private:
    ggml::Api api_;
};

}  // namespace specllama
