// Has ggml's CPU backend multiply packed weights by our kernels, in its own threads, and compute the attention of
// models that have such weights. Beside cpp/ggml_plugin nothing knows ggml's insides.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"
#include "ggml_plugin/packed_buffers.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama {

// There is one in a process, which is never destroyed: models that are freed at exit still refer to it.
class KernelBufferType : ggml::ExtraBufferType, ggml::TensorTraits {
public:
    // Looks at the loaded library and makes the buffer type.
    //
    // addresses: of all functions in SPECLLAMA_GGML_FUNCTIONS, by name.
    // registry: ggml's, of its CPU backend.
    // set: the kernels.
    // Throws std::runtime_error, which says what differs, if the library is laid out otherwise than is known here.
    KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses, std::uintptr_t registry,
                     const kernels::InstructionSet & set);

    KernelBufferType(const KernelBufferType &) = delete;
    KernelBufferType & operator=(const KernelBufferType &) = delete;

    // Models that are loaded from now on are offered it before the other buffer types of the CPU backend.
    //
    // own, offered: see BufferTypeLists.
    void offer(std::uintptr_t own, std::uintptr_t offered);

    // Whether models that this thread loads from now on get it. At first none does: llama.cpp goes on as before.
    static void take_weights(bool take);

    ggml::BufferType * type() { return buffers_.type(); }
    const kernels::InstructionSet & instruction_set() const { return set_; }

private:
    bool supports_op(void * device, const ggml::Tensor * op) override;
    ggml::TensorTraits * get_tensor_traits(const ggml::Tensor * op) override;
    bool work_size(int n_threads, const ggml::Tensor * op, std::size_t & size) override;
    bool compute_forward(ggml::ComputeParams * params, ggml::Tensor * op) override;

    // What is computed here instead of by llama.cpp.
    enum class Task { none, weights, experts, cache_product, flash_attention, fill_logits, spread_logits };
    Task task_of(const ggml::Tensor * op) const;
    bool comes_from_ours(const ggml::Tensor * tensor) const;
    bool turns_rows(const ggml::Tensor * op) const;
    // Of ggml's operations: what it computes row by row, each in the same way, however many there are (with fill and
    // set_rows), and what it may not.
    enum class Operation { other, row_by_row, fill, set_rows };
    Operation operation_of(const ggml::Tensor * op) const;

    // Whether it is a product of our weights, of one matrix or of experts.
    bool can_multiply(const ggml::Tensor * op) const;

    ggml::Api api_;
    ggml::Insides insides_;
    std::uintptr_t registry_;
    const kernels::InstructionSet & set_;
    PackedBuffers buffers_;
};

}  // namespace specllama
