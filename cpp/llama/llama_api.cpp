// Fills the function table from addresses, and describes it for the check at import.
#include "llama/llama_api.hpp"

#include "llama/errors.hpp"

namespace specllama {

namespace {

template <typename Result, typename... Arguments>
constexpr int argument_count(Result (*)(Arguments...)) {
    return sizeof...(Arguments);
}

}  // namespace

LlamaApi::LlamaApi(const std::unordered_map<std::string, std::uintptr_t> & addresses) {
    const auto find = [&addresses](const char * name) -> std::uintptr_t {
        const auto found = addresses.find(name);
        return found == addresses.end() ? 0 : found->second;
    };
    const auto require = [&find](const char * name) {
        const std::uintptr_t address = find(name);
        if (address == 0) {
            throw AbiError(std::string("libllama has no function ") + name);
        }
        return address;
    };
#define SPECLLAMA_RESOLVE(result, name, arguments) name = reinterpret_cast<decltype(name)>(require(#name));
    SPECLLAMA_LLAMA_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
#define SPECLLAMA_RESOLVE(result, name, arguments) name = reinterpret_cast<decltype(name)>(find(#name));
    SPECLLAMA_OPTIONAL_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
}

#define SPECLLAMA_DESCRIBE(result, name, arguments) FunctionAbout{#name, argument_count(api.name)},

std::vector<FunctionAbout> LlamaApi::required_functions() {
    const LlamaApi api;
    return {SPECLLAMA_LLAMA_FUNCTIONS(SPECLLAMA_DESCRIBE)};
}

std::vector<FunctionAbout> LlamaApi::optional_functions() {
    const LlamaApi api;
    return {SPECLLAMA_OPTIONAL_FUNCTIONS(SPECLLAMA_DESCRIBE)};
}

#undef SPECLLAMA_DESCRIBE

std::vector<StructLayout> LlamaApi::struct_layouts() {
#define SPECLLAMA_FIELD(type, name) StructField{#name, offsetof(type, name), sizeof(decltype(type::name))}
#define SPECLLAMA_WHOLE(type) \
    StructField { "", 0, sizeof(type) }
    return {
        {"llama_batch",
         {SPECLLAMA_FIELD(llama_batch, n_tokens), SPECLLAMA_FIELD(llama_batch, token),
          SPECLLAMA_FIELD(llama_batch, embd), SPECLLAMA_FIELD(llama_batch, pos), SPECLLAMA_FIELD(llama_batch, n_seq_id),
          SPECLLAMA_FIELD(llama_batch, seq_id), SPECLLAMA_FIELD(llama_batch, logits), SPECLLAMA_WHOLE(llama_batch)}},
        {"llama_token_data",
         {SPECLLAMA_FIELD(llama_token_data, id), SPECLLAMA_FIELD(llama_token_data, logit),
          SPECLLAMA_FIELD(llama_token_data, p), SPECLLAMA_WHOLE(llama_token_data)}},
        {"llama_token_data_array",
         {SPECLLAMA_FIELD(llama_token_data_array, data), SPECLLAMA_FIELD(llama_token_data_array, size),
          SPECLLAMA_FIELD(llama_token_data_array, selected), SPECLLAMA_FIELD(llama_token_data_array, sorted),
          SPECLLAMA_WHOLE(llama_token_data_array)}},
    };
#undef SPECLLAMA_WHOLE
#undef SPECLLAMA_FIELD
}

}  // namespace specllama
