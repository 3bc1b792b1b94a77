// Translates DRY sequence breakers from texts to tokens.
#include "llama/dry_breakers.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

#include "math/text_matcher.hpp"

namespace specllama {

namespace {

constexpr std::size_t longest_text = 40;  // bytes of a sequence breaker; a longer one is refused
constexpr std::size_t longest_rest = 20;  // tokens of the rest of a text; further tokens are dropped

void require_usable(const std::vector<std::string> & texts) {
    if (texts.size() > TextMatcher::most_texts) {
        throw std::invalid_argument("dry_sequence_breakers has " + std::to_string(texts.size()) +
                                    " texts: it may have at most " + std::to_string(TextMatcher::most_texts));
    }
    for (const std::string & text : texts) {
        if (text.empty() || text.size() > longest_text) {
            throw std::invalid_argument("a text of dry_sequence_breakers has " + std::to_string(text.size()) +
                                        " bytes: it must have 1 to " + std::to_string(longest_text));
        }
    }
}

// The tokens of the rest of a text after its first bytes. Each rest is tokenized once.
class RestTokens {
public:
    RestTokens(const LlamaApi & api, const llama_vocab * vocab) : api_(api), vocab_(vocab) {}

    const std::vector<int32_t> & tokens(const std::string & rest) {
        const auto [found, is_new] = known_.try_emplace(rest);
        if (is_new) {
            std::vector<int32_t> & tokens = found->second;
            tokens.resize(4 * longest_text);
            const int32_t count = api_.llama_tokenize(vocab_, rest.data(), static_cast<int32_t>(rest.size()),
                                                      tokens.data(), static_cast<int32_t>(tokens.size()), false, false);
            tokens.resize(std::min(static_cast<std::size_t>(std::max(count, 0)), longest_rest));
        }
        return found->second;
    }

private:
    const LlamaApi & api_;
    const llama_vocab * vocab_;
    std::map<std::string, std::vector<int32_t>> known_;
};

SequenceBreakers::Rests rests_behind(const TextMatcher & matcher, const TextMatcher::Match & match,
                                     const std::vector<std::string> & texts, RestTokens & rests) {
    SequenceBreakers::Rests found;
    if (match.contained != 0) {
        found.emplace_back();
    }
    for (const auto & [text, length] : matcher.begun(match.end)) {
        if ((match.contained >> text & 1U) == 0) {
            found.push_back(rests.tokens(texts[text].substr(length)));
        }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

}  // namespace

SequenceBreakers breakers_of_texts(const LlamaApi & api, const llama_vocab * vocab, const TokenTexts & words,
                                   const std::vector<std::string> & texts) {
    require_usable(texts);
    const TextMatcher matcher(texts);
    RestTokens rests(api, vocab);
    std::map<TextMatcher::Match, std::shared_ptr<const SequenceBreakers::Rests>> known;
    SequenceBreakers breakers;
    for (int32_t token = 0; token < words.size(); ++token) {
        const TextMatcher::Match match = matcher.match(words.of(token));
        if (match.contained == 0 && match.end == 0) {
            continue;
        }
        auto & of_match = known[match];  // shared by all tokens with an equal match: there may be many thousands
        if (!of_match) {
            of_match = std::make_shared<const SequenceBreakers::Rests>(rests_behind(matcher, match, texts, rests));
        }
        if (!of_match->empty()) {
            breakers.put(token, of_match);
        }
    }
    return breakers;
}

}  // namespace specllama
