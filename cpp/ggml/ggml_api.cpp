#include "ggml/ggml_api.hpp"

#include <stdexcept>

namespace specllama::ggml {

Api::Api(const std::unordered_map<std::string, std::uintptr_t> & addresses) {
    const auto find = [&addresses](const char * name, bool is_optional) {
        const auto found = addresses.find(name);
        const std::uintptr_t address = found == addresses.end() ? 0 : found->second;
        if (address == 0 && !is_optional) {
            throw std::invalid_argument(std::string("ggml has no function ") + name);
        }
        return address;
    };
#define SPECLLAMA_RESOLVE(name, signature) name = reinterpret_cast<Pointer<signature>>(find(#name, false));
    SPECLLAMA_GGML_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
#define SPECLLAMA_RESOLVE(name, signature) name = reinterpret_cast<Pointer<signature>>(find(#name, true));
    SPECLLAMA_OPTIONAL_GGML_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
}

}  // namespace specllama::ggml
