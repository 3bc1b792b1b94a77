// The buffer type with which ggml's CPU backend uses our kernels, in its own threads: to multiply packed weights, and
// to compute the attention of models that have such weights. Only cpp/ggml and cpp/ggml_plugin know ggml's insides.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"
#include "ggml_plugin/packed_buffers.hpp"
#include "ggml_plugin/state_update.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama {

// A process has one object of this class. It is never destroyed, because models that are freed at exit still refer to
// it.
class KernelBufferType : ggml::ExtraBufferType, ggml::TensorTraits {
public:
    // Checks the loaded library, and makes the buffer type.
    //
    // addresses: those of all functions in SPECLLAMA_GGML_FUNCTIONS, by name.
    // registry: ggml's registry of its CPU backend.
    // set: the kernels.
    // updates_states: whether they update the states of recurrent layers.
    // Throws std::runtime_error, which says what differs, if the library is not laid out as ggml_layout.hpp says.
    KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses, std::uintptr_t registry,
                     const kernels::InstructionSet & set, bool updates_states);

    KernelBufferType(const KernelBufferType &) = delete;
    KernelBufferType & operator=(const KernelBufferType &) = delete;

    // Offers this buffer type to all models that are loaded from now on, before the other types of the CPU backend.
    //
    // used, offered: the addresses that BufferTypeLists describes.
    void offer(std::uintptr_t used, std::uintptr_t offered);

    // Sets whether models that this thread loads from now on use this buffer type. Before the first call they do not:
    // llama.cpp then loads them as it would without this buffer type.
    static void take_weights(bool take);

    ggml::BufferType * type() { return buffers_.type(); }
    const kernels::InstructionSet & instruction_set() const { return set_; }

private:
    bool supports_op(void * device, const ggml::Tensor * op) override;
    ggml::TensorTraits * get_tensor_traits(const ggml::Tensor * op) override;
    bool work_size(int n_threads, const ggml::Tensor * op, std::size_t & size) override;
    bool compute_forward(ggml::ComputeParams * params, ggml::Tensor * op) override;

    // What this class computes in place of llama.cpp.
    enum class Task {
        none,
        weights,
        experts,
        cache_product,
        flash_attention,
        fill_logits,
        spread_logits,
        copy_rows,
        choose_rows,
        update_state
    };
    Task task_of(const ggml::Tensor * op) const;
    bool comes_from_ours(const ggml::Tensor * tensor) const;
    bool turns_rows(const ggml::Tensor * op) const;
    // A kind of ggml's operations. ggml computes all but `other` row by row, and each row in the same way however many
    // rows there are. Of the operations of the kind `other`, that is not known.
    enum class Operation : uint8_t {
        unknown,
        other,
        row_by_row,
        view,
        fill,
        set_rows,
        copy,
        get_rows,
        delta_net,
        scan
    };
    Operation operation_of(const ggml::Tensor * op) const;

    // The update of a state that a CPY copies; null if it copies something else.
    ggml::Tensor * update_of(const ggml::Tensor * copy) const;
    std::optional<StateUpdate::Kind> update_kind(const ggml::Tensor * op) const;
    void note_readers(const ggml::Tensor * op) const;

    // Whether the operation is a product of our weights, of one matrix or of experts.
    bool can_multiply(const ggml::Tensor * op) const;

    ggml::Api api_;
    ggml::Insides insides_;
    std::uintptr_t registry_;
    const kernels::InstructionSet & set_;
    const bool updates_states_;
    PackedBuffers buffers_;
    mutable std::array<std::atomic<Operation>, 256> operations_ = {};  // by ggml's numbers
    mutable std::atomic<bool> has_states_ = false;  // whether a model with recurrent layers has been seen
};

}  // namespace specllama
