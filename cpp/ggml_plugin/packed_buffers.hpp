// Packs weights for the kernels while they are loaded into the buffers of one of ggml's own types, CPU_REPACK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"

namespace specllama {

// Takes the place of CPU_REPACK's functions. A buffer that is allocated for models of ours holds packed weights, and
// beside them those that CPU_REPACK arranges for ggml's own kernels: weights of types that ours do not multiply. A
// buffer for another model is CPU_REPACK's alone.
//
// A process has one object of this class. It is never destroyed, because models that are freed at exit still refer to
// it.
class PackedBuffers {
public:
    // type: CPU_REPACK.
    // Throws std::runtime_error if its functions or its buffers are others than those that are known.
    PackedBuffers(const ggml::Api & api, const ggml::Insides & insides, ggml::BufferType * type);

    PackedBuffers(const PackedBuffers &) = delete;
    PackedBuffers & operator=(const PackedBuffers &) = delete;

    // Takes the place, at any time: other threads may be loading models meanwhile.
    void take_place();

    ggml::BufferType * type() { return type_; }
    // Whether these are packed weights.
    bool hold(const ggml::Tensor * weights) const;
    // Whether this thread is looking for a buffer type for the weights of an operation, and they can be packed.
    bool may_take_weights_of(const ggml::Tensor * op) const;

    // Sets which types of weights are packed, of models that this thread loads from now on. Before the first call none
    // is: llama.cpp then loads them as if this class did not exist.
    static void take_weights(const std::vector<kernels::QuantizedType> & types);
    // Bytes of packed weights that this thread has loaded since it began.
    static std::size_t bytes_loaded();

private:
    // Functions of ggml's, whose places ours take.
    struct Functions {
        ggml::Buffer * (*allocate)(ggml::BufferType *, std::size_t) = nullptr;
        std::size_t (*alignment)(ggml::BufferType *) = nullptr;
        std::size_t (*allocated_size)(ggml::BufferType *, const ggml::Tensor *) = nullptr;
        int (*init_tensor)(ggml::Buffer *, ggml::Tensor *) = nullptr;
        void (*set_tensor)(ggml::Buffer *, ggml::Tensor *, const void *, std::size_t, std::size_t) = nullptr;
    };

    static ggml::Buffer * allocate(ggml::BufferType * type, std::size_t size);
    static std::size_t alignment(ggml::BufferType * type);
    static std::size_t allocated_size(ggml::BufferType * type, const ggml::Tensor * tensor);
    static int init_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor);
    static void set_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor, const void * data, std::size_t offset,
                           std::size_t size);
    // The type of weights that this thread has packed; nothing if it leaves them as they are.
    std::optional<kernels::QuantizedType> taken_type(const ggml::Tensor * tensor) const;
    std::size_t packed_size(const ggml::Tensor * tensor, kernels::QuantizedType type) const;
    void pack(const ggml::Tensor * tensor, const void * data) const;
    void take_part(const ggml::Tensor * tensor, const void * data, std::size_t offset, std::size_t size);
    void ** words() const { return reinterpret_cast<void **>(type_); }

    // The object that the static functions above use: ggml passes them no pointer of ours.
    static PackedBuffers * the_one_;

    const ggml::Api & api_;
    const ggml::Insides & insides_;
    ggml::BufferType * type_;
    Functions theirs_;
    std::unordered_map<const ggml::Tensor *, std::vector<uint8_t>> unfinished_;  // parts of unfinished tensors
};

}  // namespace specllama
