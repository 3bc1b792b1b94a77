// Fills the table of functions from addresses, and describes functions and structs for the check at import.
#include "llama/llama_api.hpp"

#include <algorithm>
#include <new>

#include "llama/errors.hpp"

namespace specllama {

namespace {

// Stands for any struct returned by value. It cannot be copied, so the function writes it where the caller says.
struct Returned {
    std::uint8_t bytes[4096];

    Returned(const Returned & other) = delete;
    Returned & operator=(const Returned & other) = delete;
};

std::vector<std::uint8_t> bytes_returned(Returned (*function)(), std::uint8_t filling) {
    std::vector<std::uint8_t> room(sizeof(Returned), filling);
    std::uint8_t * volatile place = room.data();  // the compiler must assume that room's bytes are written
    ::new (static_cast<void *>(place)) Returned(function());
    return room;
}

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
    };
#undef SPECLLAMA_WHOLE
#undef SPECLLAMA_FIELD
}

std::vector<std::uint8_t> bytes_returned(std::uintptr_t function) {
    const auto call = reinterpret_cast<Returned (*)()>(function);
    std::vector<std::uint8_t> found = bytes_returned(call, 0);
    const std::vector<std::uint8_t> other = bytes_returned(call, 255);
    // Bytes that the function did not write differ.
    const auto last = std::mismatch(found.rbegin(), found.rend(), other.rbegin(),
                                    [](std::uint8_t one, std::uint8_t two) { return one != two; });
    found.erase(last.first.base(), found.end());
    return found;
}

}  // namespace specllama
