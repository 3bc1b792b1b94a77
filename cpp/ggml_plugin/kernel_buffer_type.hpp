// A buffer type of ggml's CPU backend whose weights are packed for the kernels while they load, and multiplied by them
// in ggml's own threads. Attention of models that have it is computed by our kernels, too. Beside cpp/ggml_plugin
// nothing knows ggml's insides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ggml_plugin/ggml_api.hpp"
#include "kernels/instruction_set.hpp"

namespace specllama {

// There is one in a process, which is never destroyed: models that are freed at exit still refer to it.
class KernelBufferType : ggml::ExtraBufferType, ggml::TensorTraits {
public:
    static constexpr const char * kName = "SPECLLAMA";

    // Looks at the loaded library and makes the buffer type.
    //
    // addresses: of all functions in SPECLLAMA_GGML_FUNCTIONS, by name.
    // set: the kernels.
    // Throws std::runtime_error, which says what differs, if the library is laid out otherwise than is known here.
    KernelBufferType(const std::unordered_map<std::string, std::uintptr_t> & addresses,
                     const kernels::InstructionSet & set);

    KernelBufferType(const KernelBufferType &) = delete;
    KernelBufferType & operator=(const KernelBufferType &) = delete;

    // Puts it before the other buffer types of the CPU backend, for models that are loaded from now on.
    //
    // list: address of ggml_backend_cpu_get_extra_buffer_types, which returns a std::vector. llama.cpp is offered a
    // copy that is made when the first model is loaded: afterwards this has no effect.
    void offer(std::uintptr_t list);

    // Whether models that this thread loads from now on get it. At first none does: llama.cpp goes on as before.
    static void take_weights(bool take);

    ggml::BufferType * type() { return &type_; }
    const kernels::InstructionSet & instruction_set() const { return set_; }
    // Bytes of packed weights that this thread has loaded since it began.
    static std::size_t bytes_loaded();

private:
    bool supports_op(void * device, const ggml::Tensor * op) override;
    ggml::TensorTraits * get_tensor_traits(const ggml::Tensor * op) override;
    bool work_size(int n_threads, const ggml::Tensor * op, std::size_t & size) override;
    bool compute_forward(ggml::ComputeParams * params, ggml::Tensor * op) override;

    void learn_tensors();
    void learn_types(void * context);
    void learn_attention(void * context);
    void learn_buffers();

    // What is computed here instead of by llama.cpp.
    enum class Task { none, weights, cache_product, flash_attention };
    Task task_of(const ggml::Tensor * op) const;
    bool comes_from_ours(const ggml::Tensor * tensor) const;
    bool is_row_by_row(const ggml::Tensor * op) const;

    bool is_ours(const ggml::Tensor * weights) const;
    bool can_multiply(const ggml::Tensor * op) const;
    // Nothing if the kernels do not multiply such weights.
    std::optional<kernels::QuantizedType> type_of(const ggml::Tensor * tensor) const;

    static const char * name(ggml::BufferType * type);
    static ggml::Buffer * allocate(ggml::BufferType * type, std::size_t size);
    static std::size_t alignment(ggml::BufferType * type);
    static std::size_t allocated_size(ggml::BufferType * type, const ggml::Tensor * tensor);
    void pack(const ggml::Tensor * tensor, const void * data);
    void take_part(const ggml::Tensor * tensor, const void * data, std::size_t offset, std::size_t size);
    static void set_tensor(ggml::Buffer * buffer, ggml::Tensor * tensor, const void * data, std::size_t offset,
                           std::size_t size);

    // The one that the functions above belong to: ggml hands them nothing of ours.
    static KernelBufferType * the_one_;

    ggml::Api api_;
    const kernels::InstructionSet & set_;
    ggml::BufferType type_ = {};
    int num_functions_ = 0;  // of a buffer
    int mul_mat_ = -1;       // the operation
    int flash_attention_ = -1;
    std::unordered_map<int, kernels::QuantizedType> types_;                      // by their numbers in ggml
    std::unordered_map<const ggml::Tensor *, std::vector<uint8_t>> unfinished_;  // tensors that came in parts
};

}  // namespace specllama
