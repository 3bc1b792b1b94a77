// The texts of all tokens of a vocabulary, as they are behind another token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama_api.hpp"

namespace specllama {

class TokenTexts {
public:
    TokenTexts(const LlamaApi & api, const llama_vocab * vocab);

    std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()); }
    std::string of(std::int32_t token) const;

private:
    std::string all_;                // one behind the other
    std::vector<std::size_t> ends_;  // of each token's text in `all_`
};

}  // namespace specllama
