// The texts of all tokens of a vocabulary, as they are behind another token.
#include "token_texts.hpp"

#include <algorithm>

namespace specllama {

namespace {

// Not the token's piece: at the beginning of a text the tokenizer's leading space is left out.
std::string text_of(const LlamaApi & api, const llama_vocab * vocab, std::int32_t token) {
    std::string text(64, '\0');
    std::int32_t size =
        api.llama_detokenize(vocab, &token, 1, text.data(), static_cast<std::int32_t>(text.size()), false, true);
    if (size < 0) {
        text.resize(static_cast<std::size_t>(-size));
        size = api.llama_detokenize(vocab, &token, 1, text.data(), -size, false, true);
    }
    text.resize(static_cast<std::size_t>(std::max(size, 0)));
    return text;
}

}  // namespace

TokenTexts::TokenTexts(const LlamaApi & api, const llama_vocab * vocab) {
    const std::int32_t count = api.llama_vocab_n_tokens(vocab);
    ends_.reserve(static_cast<std::size_t>(count));
    for (std::int32_t token = 0; token < count; ++token) {
        all_ += text_of(api, vocab, token);
        ends_.push_back(all_.size());
    }
}

std::string TokenTexts::of(std::int32_t token) const {
    const auto index = static_cast<std::size_t>(token);
    const std::size_t start = index == 0 ? 0 : ends_[index - 1];
    return all_.substr(start, ends_[index] - start);
}

}  // namespace specllama
