#include "ggml/ggml_api.hpp"

#include <stdexcept>

namespace specllama::ggml {

Api::Api(const std::unordered_map<std::string, std::uintptr_t> & addresses) {
    const auto find = [&addresses](const char * name) {
        const auto found = addresses.find(name);
        if (found == addresses.end() || found->second == 0) {
            throw std::invalid_argument(std::string("ggml has no function ") + name);
        }
        return found->second;
    };
#define SPECLLAMA_RESOLVE(name, signature) name = reinterpret_cast<Pointer<signature>>(find(#name));
    SPECLLAMA_GGML_FUNCTIONS(SPECLLAMA_RESOLVE)
#undef SPECLLAMA_RESOLVE
}

}  // namespace specllama::ggml
