// Checks of a prompt's tokens and length.
#include "loop/prompt_checks.hpp"

#include <stdexcept>
#include <string>

namespace specllama {

void refuse_bad_tokens(const std::vector<int32_t> & tokens, std::size_t first, const Decoder & target) {
    for (std::size_t i = first; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= target.n_vocab()) {
            throw std::invalid_argument("token " + std::to_string(tokens[i]) + " at index " + std::to_string(i) +
                                        " is out of range: the vocabulary has the tokens 0 to " +
                                        std::to_string(target.n_vocab() - 1));
        }
    }
}

void refuse_bad_prompt(const std::vector<int32_t> & prompt, const Sequence & target) {
    const Decoder & decoder = target.decoder();
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty: give at least one token, such as the model's BOS token");
    }
    if (prompt.size() > decoder.n_ctx()) {
        throw std::invalid_argument("the prompt of " + std::to_string(prompt.size()) +
                                    " tokens is longer than the context: n_ctx=" + std::to_string(decoder.n_ctx()) +
                                    "; shorten it, or create the Llama with a larger n_ctx (-c)");
    }
    refuse_bad_tokens(prompt, num_common(prompt, target.tokens()), decoder);  // those in the memory were checked before
}

}  // namespace specllama
