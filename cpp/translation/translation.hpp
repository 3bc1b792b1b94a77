// How a draft of another tokenizer reads its target's text, and which of its tokens the target has, too.
//
// TLI (Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
// Vocabularies", ICML 2025, arXiv 2502.05202, algorithm 4): the draft's distribution is restricted to the tokens whose
// text both vocabularies have. What the draft has read decides how good its tokens are, and never whether they are
// exact.
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

// What stays the same for all texts of a target and its draft. A token is of text if it writes something and ends no
// text. No other one is ever drafted; the draft reads its own token of the same name or role in its place, or nothing:
// its name is no text.
class Translation {
public:
    // roles: tokens of the target, and the draft's for the same. opening: what the draft's texts begin with; -1:
    // nothing. The vocabularies must have names for their tokens.
    Translation(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft,
                const std::vector<std::pair<int32_t, int32_t>> & roles, int32_t opening);

    // For each of the draft's tokens the target's with its text; -1: there is none. No two have the same.
    const std::vector<int32_t> & drafted() const { return drafted_; }
    // Texts that tokens of the target have, how many of them the draft has a token for, and how many texts its have.
    std::size_t num_of_text() const { return num_of_text_; }
    std::size_t num_common() const { return num_common_; }
    std::size_t num_of_draft() const { return num_of_draft_; }
    std::size_t num_target_tokens() const { return read_.size(); }
    int32_t opening() const { return opening_; }
    // Whether the target's texts begin with a space of its tokenizer's.
    bool target_adds_space() const { return target_adds_space_; }

    // What the target's token writes; nothing of one that is not of text.
    std::string_view piece(int32_t token) const;
    // What the draft reads in place of a token that is not of text; -1: nothing.
    int32_t special(int32_t token) const;
    // The draft's tokens of what is behind a text, appended. as_beginning: it is the text's beginning. What the draft
    // cannot write is left out, and half a character is its bytes, where the draft has tokens for them.
    void tokenize(std::string_view text, bool as_beginning, std::vector<int32_t> & out) const;
    // One token of the target's behind a text whose other tokens are not read again.
    void read_alone(int32_t token, std::vector<int32_t> & out) const;

private:
    // In read_: else the draft's token with the same text, or of the same role.
    static constexpr int32_t by_text = -1;  // of text, which the draft has no token for
    static constexpr int32_t nothing = -2;  // not of text

    void tokenize_characters(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const;
    bool tokenize_run(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const;
    bool is_of_draft(int32_t token) const { return token >= 0 && static_cast<std::size_t>(token) < drafted_.size(); }

    Tokenizer tokenizer_;  // the draft's
    std::vector<int32_t> drafted_;
    std::vector<int32_t> read_;
    std::vector<int32_t> specials_;  // [tokens of the target]: see special()
    std::string pieces_;             // the target's, one after the other
    std::vector<std::size_t> ends_;  // of each token's in `pieces_`
    std::vector<int32_t> bytes_;     // [256]: the draft's tokens of one byte; -1: it has none
    std::vector<int32_t> guard_;     // its tokens of a line's end, where it puts a space before each text
    bool target_adds_space_ = false;
    int32_t opening_ = -1;
    std::size_t num_of_text_ = 0;
    std::size_t num_of_draft_ = 0;
    std::size_t num_common_ = 0;
};

// One text as the draft reads it. It is tokenized in parts, each of which is long enough to be cut as the whole would
// be, and which begin at words where there are some. Where they begin depends on the target's tokens up to there alone:
// what is read of a text does not depend on what was read before.
class Retold {
public:
    explicit Retold(const Translation & translation) : translation_(translation) {}

    // The draft's tokens of a text: never none. Only the part that changed is tokenized.
    const std::vector<int32_t> & read(const std::vector<int32_t> & text);
    // What the last read() gave.
    const std::vector<int32_t> & own() const { return own_; }
    // So many of them were not touched by the last read().
    std::size_t num_unchanged() const { return num_unchanged_; }
    // Bytes that were tokenized since the beginning.
    std::size_t num_tokenized() const { return num_tokenized_; }

private:
    struct Part {
        std::size_t first;      // of the target's tokens
        std::size_t own_first;  // of the draft's
    };

    void begin_part(std::size_t first);
    void end_part();

    const Translation & translation_;
    std::vector<int32_t> text_;
    std::vector<int32_t> own_;
    std::vector<Part> parts_;
    std::string open_;  // what the last part writes
    std::size_t num_unchanged_ = 0;
    std::size_t num_tokenized_ = 0;
};

}  // namespace specllama
