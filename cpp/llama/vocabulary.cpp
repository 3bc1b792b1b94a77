// What a vocabulary knows about its tokens.
#include "llama/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

namespace specllama {

namespace {

// The text that a function of llama.cpp writes into a buffer. The function returns the text's size, or minus the size
// if the buffer is too small.
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

// Identifies a token without its id: the token's name, and the text that it adds. A special token adds no text.
std::string name_of(const LlamaApi & api, const llama_vocab * vocab, int32_t token) {
    return std::string(api.llama_vocab_get_text(vocab, token)) + '\0' + piece_of(api, vocab, token, false);
}

// Whether one id has the same name_of() in both vocabularies. Allocates nothing, to be fast: most tokens are equal.
bool is_same(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft, int32_t token) {
    if (std::strcmp(api.llama_vocab_get_text(target, token), api.llama_vocab_get_text(draft, token)) != 0) {
        return false;
    }
    std::array<char, 64> of_target{}, of_draft{};
    const auto room = static_cast<int32_t>(of_target.size());
    const int32_t size = api.llama_token_to_piece(target, token, of_target.data(), room, 0, false);
    const int32_t other = api.llama_token_to_piece(draft, token, of_draft.data(), room, 0, false);
    return size == other && (size < 0 || std::equal(of_target.begin(), of_target.begin() + size, of_draft.begin()));
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

std::vector<TokenWord> token_words(const LlamaApi & api, const llama_vocab * vocab) {
    std::vector<TokenWord> words(static_cast<std::size_t>(api.llama_vocab_n_tokens(vocab)));
    for (std::size_t i = 0; i < words.size(); ++i) {
        const auto token = static_cast<int32_t>(i);
        words[i].name = api.llama_vocab_get_text(vocab, token);
        if (!api.llama_vocab_is_eog(vocab, token)) {
            words[i].piece = piece_of(api, vocab, token, false);
        }
    }
    return words;
}

// Detokenizes, as llama_sampler_init_dry does: unlike a piece, the result may lack a leading space.
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

std::vector<int32_t> common_tokens(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft) {
    const int32_t num_target = api.llama_vocab_n_tokens(target), num_draft = api.llama_vocab_n_tokens(draft);
    std::vector<int32_t> common(static_cast<std::size_t>(num_target), -1);
    std::unordered_map<std::string, int32_t> left;  // the draft's tokens without a partner, by name
    for (int32_t token = 0; token < std::max(num_target, num_draft); ++token) {
        if (token < std::min(num_target, num_draft) && is_same(api, target, draft, token)) {
            common[static_cast<std::size_t>(token)] = token;
        } else if (token < num_draft) {
            left.emplace(name_of(api, draft, token), token);
        }
    }
    for (int32_t token = 0; token < num_target && !left.empty(); ++token) {
        int32_t & found = common[static_cast<std::size_t>(token)];
        const auto named = found < 0 ? left.find(name_of(api, target, token)) : left.end();
        if (named != left.end()) {
            found = named->second;
            left.erase(named);
        }
    }
    return common;
}

}  // namespace specllama
