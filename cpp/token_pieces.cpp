// What each token of a vocabulary adds to a text, and which tokens end one.
#include "token_pieces.hpp"

#include <algorithm>

namespace specllama {

namespace {

std::string piece_of(const LlamaApi & api, const llama_vocab * vocab, std::int32_t token, bool special) {
    std::string piece(64, '\0');
    const auto size = static_cast<std::int32_t>(piece.size());
    std::int32_t found = api.llama_token_to_piece(vocab, token, piece.data(), size, 0, special);
    if (found < 0) {
        piece.resize(static_cast<std::size_t>(-found));
        found = api.llama_token_to_piece(vocab, token, piece.data(), -found, 0, special);
    }
    piece.resize(static_cast<std::size_t>(std::max(found, 0)));
    return piece;
}

}  // namespace

TokenPieces token_pieces(const LlamaApi & api, const llama_vocab * vocab) {
    TokenPieces result;
    const std::int32_t count = api.llama_vocab_n_tokens(vocab);
    result.pieces.reserve(static_cast<std::size_t>(count));
    for (std::int32_t token = 0; token < count; ++token) {
        const bool ends = api.llama_vocab_is_eog(vocab, token);
        std::string piece = ends ? std::string() : piece_of(api, vocab, token, false);
        if (piece.empty()) {
            piece = "\xff" + piece_of(api, vocab, token, true);
        }
        if (ends) {
            result.ends.push_back(token);
        }
        result.pieces.push_back(std::move(piece));
    }
    return result;
}

}  // namespace specllama
