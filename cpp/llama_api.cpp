// Fills the function table from addresses, and describes it for the check at import.
#include "llama_api.hpp"

#include "errors.hpp"

namespace specllama {

namespace {

template <typename Result, typename... Arguments>
constexpr int argument_count(Result (*)(Arguments...)) {
    return sizeof...(Arguments);
}

}  // namespace

LlamaApi::LlamaApi(const std::unordered_map<std::string, std::uintptr_t> & addresses) {
    const auto find = [&addresses](const char * name) {
        const auto found = addresses.find(name);
        if (found == addresses.end() || found->second == 0) {
            throw AbiError(std::string("libllama has no function ") + name);
        }
        return found->second;
    };
#define SPECLLAMA_RESOLVE(result, name, arguments) name = reinterpret_cast<decltype(name)>(find(#name));
    SPECLLAMA_LLAMA_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
}

std::vector<std::pair<std::string, int>> LlamaApi::required_functions() {
    const LlamaApi api;
    return {
#define SPECLLAMA_DESCRIBE(result, name, arguments) {#name, argument_count(api.name)},
        SPECLLAMA_LLAMA_FUNCTIONS(SPECLLAMA_DESCRIBE)
#undef SPECLLAMA_DESCRIBE
    };
}

std::vector<std::pair<std::string, std::size_t>> LlamaApi::batch_layout() {
    return {
        {"n_tokens", offsetof(llama_batch, n_tokens)}, {"token", offsetof(llama_batch, token)},
        {"embd", offsetof(llama_batch, embd)},         {"pos", offsetof(llama_batch, pos)},
        {"n_seq_id", offsetof(llama_batch, n_seq_id)}, {"seq_id", offsetof(llama_batch, seq_id)},
        {"logits", offsetof(llama_batch, logits)},     {"", sizeof(llama_batch)},
    };
}

}  // namespace specllama
