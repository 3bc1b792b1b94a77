// Decodes a text with llama.cpp and our kernels, in batches of several sizes, and compares the logits to the last bit:
// a program for systems where no Python runs. It prints the instruction set, the bytes of packed weights and numbers
// that stand for all logits, and ends with 1 if a batch changes a bit.
//
// It is linked to the llama.cpp whose headers it includes. ggml_barrier is not used, as on Windows.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "ggml_plugin/kernel_buffer_type.hpp"
#include "kernels/instruction_set.hpp"
#include "llama.h"

namespace {

using Addresses = std::unordered_map<std::string, std::uintptr_t>;

template <class Pointer>
std::uintptr_t address(Pointer pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

Addresses functions() {
    return {
#define SPECLLAMA_ADDRESS(name, signature) {#name, address(&::name)},
        SPECLLAMA_GGML_FUNCTIONS(SPECLLAMA_ADDRESS)
#undef SPECLLAMA_ADDRESS
    };
}

Addresses extra_buffer_types(ggml_backend_reg_t registry) {
    void * found = ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts");
    const auto offered = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(found);
    Addresses types;
    for (ggml_backend_buffer_type_t * type = offered(ggml_backend_reg_dev_get(registry, 0)); *type != nullptr; ++type) {
        types[ggml_backend_buft_name(*type)] = address(*type);
    }
    return types;
}

// The fastest instruction set of this processor; plain C++ if that is asked for.
const specllama::kernels::InstructionSet & chosen_set(bool plain) {
    const specllama::kernels::InstructionSet * sets[specllama::kernels::kMostSets];
    const int count = specllama::kernels::usable_sets(sets);
    return *sets[plain ? count - 1 : 0];
}

void offer(const specllama::kernels::InstructionSet & set) {
    using namespace specllama;
    ggml_backend_reg_t registry = ggml_backend_cpu_reg();
    auto * made = new KernelBufferType(functions(), address(registry), extra_buffer_types(registry), set, true);
    made->take_place();
    std::vector<kernels::QuantizedType> all;
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        all.push_back(static_cast<kernels::QuantizedType>(i));
    }
    PackedBuffers::take_weights(all);
}

// The logits of a text of `num_tokens` tokens, decoded in batches of this size.
std::vector<float> logits(llama_context * context, int num_tokens, int batch_size, int vocabulary) {
    llama_memory_clear(llama_get_memory(context), true);
    std::vector<float> all;
    for (int first = 0; first < num_tokens; first += batch_size) {
        llama_batch batch = llama_batch_init(batch_size, 0, 1);
        for (int i = first; i < num_tokens && i < first + batch_size; ++i) {
            const int at = batch.n_tokens++;
            batch.token[at] = 3 + i % 11;
            batch.pos[at] = i;
            batch.n_seq_id[at] = 1;
            batch.seq_id[at][0] = 0;
            batch.logits[at] = 1;
        }
        if (llama_decode(context, batch) != 0) {
            std::puts("llama_decode failed");
            std::exit(1);
        }
        for (int i = 0; i < batch.n_tokens; ++i) {
            const float * row = llama_get_logits_ith(context, i);
            all.insert(all.end(), row, row + vocabulary);
        }
        llama_batch_free(batch);
    }
    return all;
}

uint64_t hash_of(const std::vector<float> & values) {
    uint64_t hash = 14695981039346656037ULL;  // FNV-1a
    const auto * bytes = reinterpret_cast<const uint8_t *>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) {
        hash = (hash ^ bytes[i]) * 1099511628211ULL;
    }
    return hash;
}

// The logits of 40 tokens, which must be the same whatever the batches and the threads.
//
// turns: false: positions turn nothing, so that the logits do not depend on the system's sines, cosines and powers.
std::vector<float> same_logits(llama_model * model, int vocabulary, bool turns) {
    constexpr int kTokens = 40;
    std::vector<float> expected;
    for (const int threads : {1, 2}) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx = 256;
        params.n_threads = params.n_threads_batch = threads;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        if (!turns) {
            params.rope_freq_base = 1.0F;
            params.rope_freq_scale = 1e-30F;
            params.yarn_ext_factor = 0.0F;
        }
        llama_context * context = llama_init_from_model(model, params);
        for (const int batch_size : {kTokens, 1, 3, 8, kTokens}) {
            const std::vector<float> found = logits(context, kTokens, batch_size, vocabulary);
            if (expected.empty()) {
                expected = found;
            } else if (std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)) != 0) {
                std::printf("batches of %d differ, %d threads\n", batch_size, threads);
                std::exit(1);
            }
        }
        llama_free(context);
    }
    return expected;
}

}  // namespace

int main(int count, char ** arguments) {
    if (count < 2) {
        std::puts("usage: decode_bits MODEL.gguf [plain]");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    const auto & set = chosen_set(count > 2);
    offer(set);
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (model == nullptr) {
        std::puts("the model cannot be loaded");
        return 1;
    }
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::printf("%s\n%zu bytes packed\n", set.name, specllama::PackedBuffers::bytes_loaded());
    for (const bool turns : {true, false}) {
        std::printf("%016" PRIx64 " %s\n", hash_of(same_logits(model, vocabulary, turns)),
                    turns ? "as it is" : "without sines and cosines");
    }
    llama_model_free(model);
    return 0;
}
