// What a vocabulary says of its tokens.
#include "llama/vocabulary.hpp"

#include <algorithm>
#include <utility>

namespace specllama {

namespace {

// What a function of llama.cpp's writes into a buffer. It returns the size, or minus the size that it needs.
template <class Write>
std::string written_by(Write write) {
    std::string text(64, '\0');
    int32_t size = write(text.data(), static_cast<int32_t>(text.size()));
    if (size < 0) {
        text.resize(static_cast<std::size_t>(-size));
        size = write(text.data(), -size);
    }
    text.resize(static_cast<std::size_t>(std::max(size, 0)));
    return text;
}

}  // namespace

std::string piece_of(const LlamaApi & api, const llama_vocab * vocab, int32_t token, bool special) {
    return written_by(
        [&](char * text, int32_t size) { return api.llama_token_to_piece(vocab, token, text, size, 0, special); });
}

TokenPieces token_pieces(const LlamaApi & api, const llama_vocab * vocab) {
    TokenPieces result;
    const int32_t count = api.llama_vocab_n_tokens(vocab);
    result.pieces.reserve(static_cast<std::size_t>(count));
    for (int32_t token = 0; token < count; ++token) {
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

FirstBytes::FirstBytes(const LlamaApi & api, const llama_vocab * vocab) {
    for (int32_t token = 0; token < api.llama_vocab_n_tokens(vocab); ++token) {
        if (api.llama_vocab_is_eog(vocab, token)) {
            tokens_[end].push_back(token);
            continue;
        }
        const std::string piece = piece_of(api, vocab, token, true);
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

// Not the tokens' pieces: at the beginning of a text the tokenizer's leading space is left out.
TokenTexts::TokenTexts(const LlamaApi & api, const llama_vocab * vocab) {
    const int32_t count = api.llama_vocab_n_tokens(vocab);
    ends_.reserve(static_cast<std::size_t>(count));
    for (int32_t token = 0; token < count; ++token) {
        all_ += written_by(
            [&](char * text, int32_t size) { return api.llama_detokenize(vocab, &token, 1, text, size, false, true); });
        ends_.push_back(all_.size());
    }
}

std::string TokenTexts::of(int32_t token) const {
    const auto index = static_cast<std::size_t>(token);
    const std::size_t start = index == 0 ? 0 : ends_[index - 1];
    return all_.substr(start, ends_[index] - start);
}

std::optional<VocabularyDifference> first_difference(const LlamaApi & api, const llama_vocab * target,
                                                     const llama_vocab * draft) {
    const int32_t common = std::min(api.llama_vocab_n_tokens(target), api.llama_vocab_n_tokens(draft));
    for (int32_t token = 0; token < common; ++token) {
        std::string target_text = api.llama_vocab_get_text(target, token);
        std::string draft_text = api.llama_vocab_get_text(draft, token);
        if (target_text != draft_text) {
            return VocabularyDifference{token, std::move(target_text), std::move(draft_text)};
        }
    }
    return std::nullopt;
}

}  // namespace specllama
