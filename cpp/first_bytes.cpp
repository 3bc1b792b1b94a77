// The tokens of a vocabulary by the first byte of their text.
#include "first_bytes.hpp"

namespace specllama {

FirstBytes::FirstBytes(const LlamaApi & api, const llama_vocab * vocab) {
    for (int32_t token = 0; token < api.llama_vocab_n_tokens(vocab); ++token) {
        if (api.llama_vocab_is_eog(vocab, token)) {
            tokens_[end].push_back(token);
            continue;
        }
        const std::string piece = text(api, vocab, token);
        if (piece.empty()) {
            continue;
        }
        const auto byte = static_cast<std::uint8_t>(piece[0]);
        tokens_[byte].push_back(token);
        if (piece.size() == 1) {
            single_[byte].push_back(token);
        }
    }
}

std::string FirstBytes::text(const LlamaApi & api, const llama_vocab * vocab, int32_t token) {
    std::string piece(32, '\0');
    int32_t size = api.llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
    if (size < 0) {
        piece.resize(static_cast<std::size_t>(-size));
        size = api.llama_token_to_piece(vocab, token, piece.data(), -size, 0, true);
    }
    piece.resize(static_cast<std::size_t>(size < 0 ? 0 : size));
    return piece;
}

}  // namespace specllama
