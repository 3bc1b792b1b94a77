// How ggml's CPU backend uses our kernels, in its own threads: to multiply packed weights, and to compute the attention
// of models that have such weights. Only cpp/ggml and cpp/ggml_plugin know ggml's insides.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"
#include "ggml_plugin/packed_buffers.hpp"
#include "ggml_plugin/stand_in.hpp"
#include "ggml_plugin/state_update.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama {

// Takes the place of one of ggml's extra buffer types, CPU_REPACK: computes what is ours, and hands on what is not.
//
// A process has one object of this class. It is never destroyed, because models that are freed at exit still refer to
// it.
class KernelBufferType : StandIn, ggml::TensorTraits {
public:
    static constexpr const char * kPlace = "CPU_REPACK";

    // Checks the loaded library.
    //
    // addresses: those of all functions in SPECLLAMA_GGML_FUNCTIONS, by name.
    // registry: ggml's registry of its CPU backend.
    // types: the addresses of ggml's extra buffer types, by name.
    // set: the kernels.
    // updates_states: whether they update the states of recurrent layers.
    // Throws std::runtime_error, which says what differs, if the library is not laid out as ggml_layout.hpp says, or
    // has no CPU_REPACK.
    KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses, std::uintptr_t registry,
                     const std::unordered_map<std::string, std::uintptr_t> & types, const kernels::InstructionSet & set,
                     bool updates_states);

    KernelBufferType(const KernelBufferType &) = delete;
    KernelBufferType & operator=(const KernelBufferType &) = delete;

    // Takes the place, at any time: other threads may be loading models and computing meanwhile. May be called once.
    // Other buffer types get no more weights that the kernels multiply, where a model uses these.
    void take_place();

    // Whether this thread is looking for a buffer type for weights, and the kernels multiply them.
    bool takes_weights_of(const ggml::Tensor * op) const;

    ggml::BufferType * type() { return buffers_.type(); }
    const kernels::InstructionSet & instruction_set() const { return set_; }
    // The names of the types of weights that the kernels multiply and this ggml knows.
    std::vector<std::string> types() const;

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

    // Whether the operation is a product that the kernels compute if its weights are packed, of one matrix or of
    // experts.
    bool is_product(const ggml::Tensor * op) const;
    // Whether the operation is such a product of packed weights.
    bool can_multiply(const ggml::Tensor * op) const;

    ggml::Api api_;
    ggml::Insides insides_;
    std::unordered_map<std::string, std::uintptr_t> types_;
    const kernels::InstructionSet & set_;
    const bool updates_states_;
    PackedBuffers buffers_;
    mutable std::array<std::atomic<Operation>, 256> operations_ = {};  // by ggml's numbers
    mutable std::atomic<bool> has_states_ = false;  // whether a model with recurrent layers has been seen
};

}  // namespace specllama
