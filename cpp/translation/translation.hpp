// How a draft with another tokenizer reads its target's text, and which of its tokens the target has, too.
//
// TLI (Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
// Vocabularies", ICML 2025, arXiv 2502.05202, algorithm 4): the draft's distribution is restricted to the tokens whose
// text both vocabularies have. A draft that reads the text badly drafts worse tokens, but the output stays exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/llama_api.hpp"
#include "llama/tokenizer.hpp"

namespace specllama {

// The data that all texts of a target and its draft share. A token is called `of text` if it writes something and does
// not end a text. Only such tokens are drafted. In place of any other token of the target, the draft reads its own
// token of the same name or role, or nothing.
class Translation {
public:
    // roles: tokens of the target, each with the draft's token of the same role. opening: the token that the draft's
    // texts begin with; -1: none. The vocabularies must have names for their tokens.
    Translation(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft,
                const std::vector<std::pair<int32_t, int32_t>> & roles, int32_t opening);

    // For each token of the draft, the target's token with the same text; -1: there is none. Each token of the target
    // occurs at most once.
    const std::vector<int32_t> & drafted() const { return drafted_; }
    // How many different texts the target's tokens have, how many of these texts the draft's tokens have, too, and how
    // many different texts the draft's tokens have.
    std::size_t num_of_text() const { return num_of_text_; }
    std::size_t num_common() const { return num_common_; }
    std::size_t num_of_draft() const { return num_of_draft_; }
    std::size_t num_target_tokens() const { return read_.size(); }
    int32_t opening() const { return opening_; }
    // Whether the target's tokenizer puts a space before each text.
    bool target_adds_space() const { return target_adds_space_; }

    // The text that a token of the target writes; empty if the token is not of text.
    std::string_view piece(int32_t token) const;
    // The token that the draft reads in place of a token that is not of text; -1: nothing.
    int32_t special(int32_t token) const;
    // Appends the draft's tokens of a text. as_beginning: whether nothing comes before this text. Characters that the
    // draft cannot write are left out. A part of a character becomes the draft's tokens of its bytes, if there are any.
    void tokenize(std::string_view text, bool as_beginning, std::vector<int32_t> & out) const;
    // Appends the draft's tokens of one token of the target, which follows a text that was read before.
    void read_token(int32_t token, std::vector<int32_t> & out) const;

private:
    // Entries of read_ that are not the draft's token with the same text:
    static constexpr int32_t by_text = -1;  // the token is of text, but the draft has no token with this text
    static constexpr int32_t nothing = -2;  // the token is not of text

    void tokenize_characters(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const;
    bool tokenize_run(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const;
    bool is_of_draft(int32_t token) const { return token >= 0 && static_cast<std::size_t>(token) < drafted_.size(); }

    Tokenizer tokenizer_;  // the draft's
    std::vector<int32_t> drafted_;
    std::vector<int32_t> read_;
    std::vector<int32_t> specials_;  // [tokens of the target]: see special()
    std::string pieces_;             // the texts of the target's tokens, one after the other
    std::vector<std::size_t> ends_;  // where each token's piece ends in `pieces_`
    std::vector<int32_t> bytes_;     // [256]: the draft's token of each byte; -1: there is none
    std::vector<int32_t> guard_;     // the draft's tokens of "\n", if its tokenizer puts a space before each text
    bool target_adds_space_ = false;
    int32_t opening_ = -1;
    std::size_t num_of_text_ = 0;
    std::size_t num_of_draft_ = 0;
    std::size_t num_common_ = 0;
};

// One text as the draft reads it. The text is tokenized in parts. Each part is long enough to be cut into tokens as the
// whole text would be, and begins at a word if possible. Where a part begins depends only on the target's tokens up to
// this place: so the result for a text does not depend on the texts that were read before.
class TranslatedText {
public:
    explicit TranslatedText(const Translation & translation) : translation_(translation) {}

    // Returns the draft's tokens of a text, at least one. Only the parts that changed are tokenized.
    const std::vector<int32_t> & read(const std::vector<int32_t> & text);
    // What the last read() returned.
    const std::vector<int32_t> & draft_tokens() const { return draft_tokens_; }
    // How many draft tokens, from the first on, the last read() did not change.
    std::size_t num_unchanged() const { return num_unchanged_; }
    // Bytes that were tokenized since the beginning.
    std::size_t num_tokenized() const { return num_tokenized_; }

private:
    // Where a part begins, in the target's tokens and in the draft's.
    struct Part {
        std::size_t first;           // index of its first token in text_
        std::size_t first_of_draft;  // index of its first token in draft_tokens_
    };

    void begin_part(std::size_t first);
    void end_part();

    const Translation & translation_;
    std::vector<int32_t> text_;
    std::vector<int32_t> draft_tokens_;
    std::vector<Part> parts_;
    std::string open_;  // the text of the last part, while this part is not tokenized yet
    std::size_t num_unchanged_ = 0;
    std::size_t num_tokenized_ = 0;
};

}  // namespace specllama
