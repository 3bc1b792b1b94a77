// A buffer type for ggml, whose weights are packed for the kernels while they are loaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"

namespace specllama {

// A process has one object of this class. It is never destroyed, because models that are freed at exit still refer to
// it.
class PackedBuffers {
public:
    static constexpr const char * kName = "SPECLLAMA";

    // owner: the object that ggml asks about operations on these weights.
    PackedBuffers(const ggml::Api & api, const ggml::Insides & insides, ggml::ExtraBufferType * owner);

    PackedBuffers(const PackedBuffers &) = delete;
    PackedBuffers & operator=(const PackedBuffers &) = delete;

    ggml::BufferType * type() { return reinterpret_cast<ggml::BufferType *>(words_.data()); }
    bool hold(const ggml::Tensor * weights) const;

    // Bytes of packed weights that this thread has loaded since it began.
    static std::size_t bytes_loaded();

private:
    static const char * name(ggml::BufferType * type);
    static ggml::Buffer * allocate(ggml::BufferType * type, std::size_t size);
    static std::size_t alignment(ggml::BufferType * type);
    static std::size_t allocated_size(ggml::BufferType * type, const ggml::Tensor * tensor);
    static void set_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor, const void * data, std::size_t offset,
                           std::size_t size);
    void pack(const ggml::Tensor * tensor, const void * data) const;
    void take_part(const ggml::Tensor * tensor, const void * data, std::size_t offset, std::size_t size);

    // The object that the static functions above use: ggml passes them no pointer of ours.
    static PackedBuffers * the_one_;

    const ggml::Api & api_;
    const ggml::Insides & insides_;
    std::array<void *, ggml::kMostPointers> words_ = {};                         // the buffer type, as ggml lays it out
    std::unordered_map<const ggml::Tensor *, std::vector<uint8_t>> unfinished_;  // parts of unfinished tensors
};

}  // namespace specllama
