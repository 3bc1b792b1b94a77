// The functions of ggml that the kernels' buffer type calls. Python finds their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "ggml/ggml_layout.hpp"

namespace specllama::ggml {

// ggml's ggml_init_params, which ggml_init takes by value.
struct InitParams {
    std::size_t mem_size;
    void * mem_buffer;
    bool no_alloc;
};

// The functions: X(name, type). ggml exports all of them with C names.
#define SPECLLAMA_GGML_FUNCTIONS(X)                                                                           \
    X(ggml_init, void * (*)(InitParams))                                                                      \
    X(ggml_free, void (*)(void *))                                                                            \
    X(ggml_new_tensor_2d, Tensor * (*)(void *, int, int64_t, int64_t))                                        \
    X(ggml_new_tensor_3d, Tensor * (*)(void *, int, int64_t, int64_t, int64_t))                               \
    X(ggml_mul_mat, Tensor * (*)(void *, Tensor *, Tensor *))                                                 \
    X(ggml_mul_mat_id, Tensor * (*)(void *, Tensor *, Tensor *, Tensor *))                                    \
    X(ggml_flash_attn_ext, Tensor * (*)(void *, Tensor *, Tensor *, Tensor *, Tensor *, float, float, float)) \
    X(ggml_set_name, Tensor * (*)(Tensor *, const char *))                                                    \
    X(ggml_get_name, const char * (*)(const Tensor *))                                                        \
    X(ggml_get_data, void * (*)(const Tensor *))                                                              \
    X(ggml_nbytes, std::size_t (*)(const Tensor *))                                                           \
    X(ggml_op_name, const char * (*)(int))                                                                    \
    X(ggml_type_name, const char * (*)(int))                                                                  \
    X(ggml_type_size, std::size_t (*)(int))                                                                   \
    X(ggml_tensor_overhead, std::size_t (*)())                                                                \
    X(ggml_backend_cpu_buffer_type, BufferType * (*)())                                                       \
    X(ggml_backend_buft_alloc_buffer, Buffer * (*)(BufferType *, std::size_t))                                \
    X(ggml_backend_buft_name, const char * (*)(BufferType *))                                                 \
    X(ggml_backend_buft_get_alignment, std::size_t (*)(BufferType *))                                         \
    X(ggml_backend_buft_get_max_size, std::size_t (*)(BufferType *))                                          \
    X(ggml_backend_buft_get_alloc_size, std::size_t (*)(BufferType *, const Tensor *))                        \
    X(ggml_backend_buft_is_host, bool (*)(BufferType *))                                                      \
    X(ggml_backend_buft_get_device, void * (*)(BufferType *))                                                 \
    X(ggml_backend_buffer_get_type, BufferType * (*)(Buffer *))                                               \
    X(ggml_backend_buffer_get_base, void * (*)(Buffer *))                                                     \
    X(ggml_backend_buffer_get_size, std::size_t (*)(Buffer *))                                                \
    X(ggml_backend_buffer_free, void (*)(Buffer *))

// Functions that not every build exports: ggml_barrier not on Windows. Each of the others tells that the release knows
// a type of weights. ggml_type_name must not be asked about a type that ggml does not know.
#define SPECLLAMA_OPTIONAL_GGML_FUNCTIONS(X)                          \
    X(ggml_barrier, void (*)(void *))                                 \
    X(dequantize_row_nvfp4, void (*)(const void *, float *, int64_t)) \
    X(dequantize_row_q1_0, void (*)(const void *, float *, int64_t))  \
    X(dequantize_row_q2_0, void (*)(const void *, float *, int64_t))

// A pointer for each of these functions; nullptr for an optional one that is not there.
struct Api {
    template <class Signature>
    using Pointer = Signature;
#define SPECLLAMA_FIELD(name, signature) Pointer<signature> name = nullptr;
    SPECLLAMA_GGML_FUNCTIONS(SPECLLAMA_FIELD)
    SPECLLAMA_OPTIONAL_GGML_FUNCTIONS(SPECLLAMA_FIELD)
#undef SPECLLAMA_FIELD

    // addresses: by function name. Throws std::invalid_argument, which names the function, if an address is missing.
    explicit Api(const std::unordered_map<std::string, std::uintptr_t> & addresses);
};

}  // namespace specllama::ggml
