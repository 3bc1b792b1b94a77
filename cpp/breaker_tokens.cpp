// Texts as sequence breakers, in the tokens of a vocabulary.
#include "breaker_tokens.hpp"

#include <algorithm>
#include <stdexcept>

namespace specllama {

namespace {

constexpr std::size_t longest_text = 40;  // bytes
constexpr std::size_t longest_rest = 20;  // tokens

void require_usable(const std::string & text) {
    if (text.empty() || text.size() > longest_text) {
        throw std::invalid_argument("a text of dry_sequence_breakers has " + std::to_string(text.size()) +
                                    " bytes: it must have 1 to " + std::to_string(longest_text));
    }
}

// Not the token's piece: at the beginning of a text the tokenizer's leading space is left out.
std::string text_of(const LlamaApi & api, const llama_vocab * vocab, int32_t token) {
    std::string text(64, '\0');
    int32_t size = api.llama_detokenize(vocab, &token, 1, text.data(), static_cast<int32_t>(text.size()), false, true);
    if (size < 0) {
        text.resize(static_cast<std::size_t>(-size));
        size = api.llama_detokenize(vocab, &token, 1, text.data(), -size, false, true);
    }
    text.resize(static_cast<std::size_t>(std::max(size, 0)));
    return text;
}

std::vector<int32_t> tokens_of(const LlamaApi & api, const llama_vocab * vocab, const std::string & text) {
    std::vector<int32_t> tokens(4 * longest_text);
    const int32_t count = api.llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                             static_cast<int32_t>(tokens.size()), false, false);
    tokens.resize(std::min(static_cast<std::size_t>(std::max(count, 0)), longest_rest));
    return tokens;
}

}  // namespace

SequenceBreakers breakers_of_texts(const LlamaApi & api, const llama_vocab * vocab,
                                   const std::vector<std::string> & texts) {
    std::for_each(texts.begin(), texts.end(), require_usable);
    SequenceBreakers breakers;
    for (int32_t token = 0; token < api.llama_vocab_n_tokens(vocab); ++token) {
        const std::string word = text_of(api, vocab, token);
        for (const std::string & text : texts) {
            if (word.find(text) != std::string::npos) {
                breakers.add(token, {});
                continue;
            }
            for (std::size_t at = word.find(text[0]); at != std::string::npos; at = word.find(text[0], at + 1)) {
                const std::size_t there = word.size() - at;
                if (there < text.size() && word.compare(at, there, text, 0, there) == 0) {
                    breakers.add(token, tokens_of(api, vocab, text.substr(there)));
                }
            }
        }
    }
    return breakers;
}

}  // namespace specllama
