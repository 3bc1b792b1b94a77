// The whole ABI between this extension and libllama: opaque types, three structs, one X-macro of functions.
//
// The extension never links to libllama. Python looks up these names in the library that llama_cpp has loaded, and
// passes the addresses: one wheel serves every build of llama.cpp. tests/project/test_abi_headers.py compiles this file
// against real llama.h headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

struct llama_context;
struct llama_model;
struct llama_vocab;
struct llama_memory_i;

// X(return type, name, argument types). Only functions whose types have been stable since llama-cpp-python 0.3.16, and
// none that takes a *_params struct by value.
#define SPECLLAMA_LLAMA_FUNCTIONS(X)                                                                           \
    X(const llama_model *, llama_get_model, (const llama_context *))                                           \
    X(const llama_vocab *, llama_model_get_vocab, (const llama_model *))                                       \
    X(int32_t, llama_model_n_swa, (const llama_model *))                                                       \
    X(bool, llama_model_is_recurrent, (const llama_model *))                                                   \
    X(int32_t, llama_vocab_n_tokens, (const llama_vocab *))                                                    \
    X(bool, llama_vocab_is_eog, (const llama_vocab *, int32_t))                                                \
    X(bool, llama_vocab_is_control, (const llama_vocab *, int32_t))                                            \
    X(int32_t, llama_token_to_piece, (const llama_vocab *, int32_t, char *, int32_t, int32_t, bool))           \
    X(const char *, llama_vocab_get_text, (const llama_vocab *, int32_t))                                      \
    X(int32_t, llama_tokenize, (const llama_vocab *, const char *, int32_t, int32_t *, int32_t, bool, bool))   \
    X(int32_t, llama_detokenize, (const llama_vocab *, const int32_t *, int32_t, char *, int32_t, bool, bool)) \
    X(uint32_t, llama_n_ctx, (const llama_context *))                                                          \
    X(uint32_t, llama_n_batch, (const llama_context *))                                                        \
    X(uint32_t, llama_n_ubatch, (const llama_context *))                                                       \
    X(llama_memory_i *, llama_get_memory, (const llama_context *))                                             \
    X(void, llama_memory_clear, (llama_memory_i *, bool))                                                      \
    X(bool, llama_memory_seq_rm, (llama_memory_i *, int32_t, int32_t, int32_t))                                \
    X(void, llama_memory_seq_cp, (llama_memory_i *, int32_t, int32_t, int32_t, int32_t))                       \
    X(int32_t, llama_memory_seq_pos_min, (llama_memory_i *, int32_t))                                          \
    X(int32_t, llama_memory_seq_pos_max, (llama_memory_i *, int32_t))                                          \
    X(int32_t, llama_encode, (llama_context *, llama_batch))                                                   \
    X(int32_t, llama_decode, (llama_context *, llama_batch))                                                   \
    X(void, llama_synchronize, (llama_context *))                                                              \
    X(void, llama_set_abort_callback, (llama_context *, bool (*)(void *), void *))                             \
    X(void, llama_set_embeddings, (llama_context *, bool))                                                     \
    X(float *, llama_get_logits_ith, (llama_context *, int32_t))

// Functions that some of these releases lack. Their pointers are null there.
#define SPECLLAMA_OPTIONAL_FUNCTIONS(X)                                                                        \
    X(bool, llama_model_is_hybrid, (const llama_model *))                                                      \
    X(uint32_t, llama_n_rs_seq, (const llama_context *))                                                       \
    X(std::size_t, llama_state_seq_get_size_ext, (llama_context *, int32_t, uint32_t))                         \
    X(std::size_t, llama_state_seq_get_data_ext, (llama_context *, uint8_t *, std::size_t, int32_t, uint32_t)) \
    X(std::size_t, llama_state_seq_set_data_ext, (llama_context *, const uint8_t *, std::size_t, int32_t, uint32_t))

namespace specllama {

struct llama_batch {
    int32_t n_tokens;
    int32_t * token;     // [n_tokens]
    float * embd;        // what a head reads beside tokens, or instead of them; else null
    int32_t * pos;       // [n_tokens]
    int32_t * n_seq_id;  // [n_tokens]
    int32_t ** seq_id;   // [n_tokens][n_seq_id]
    int8_t * logits;     // [n_tokens], non-zero where logits are wanted
};

struct FunctionAbout {
    std::string name;
    int num_arguments;
};

struct StructField {
    std::string name;
    std::size_t offset;  // in bytes
    std::size_t size;
};

struct StructLayout {
    std::string name;
    std::vector<StructField> fields;  // the last one has no name and is the whole struct
};

struct LlamaApi {
#define SPECLLAMA_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
    SPECLLAMA_LLAMA_FUNCTIONS(SPECLLAMA_DECLARE)
    SPECLLAMA_OPTIONAL_FUNCTIONS(SPECLLAMA_DECLARE)
#undef SPECLLAMA_DECLARE

    LlamaApi() = default;

    // `addresses`: by name. Throws AbiError if a required function is missing or null.
    explicit LlamaApi(const std::unordered_map<std::string, std::uintptr_t> & addresses);

    static std::vector<FunctionAbout> required_functions();
    static std::vector<FunctionAbout> optional_functions();
    // The layouts of the structs above.
    static std::vector<StructLayout> struct_layouts();
};

// The bytes of the struct that a function without arguments returns by value, up to the last byte that it writes. The
// struct must have more than 16 bytes, so that every ABI returns it in memory, and at most 4,096.
std::vector<std::uint8_t> bytes_returned(std::uintptr_t function);

}  // namespace specllama
