// The tokens of any text.
#include "llama/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>

#include "llama/deep_stack.hpp"

namespace specllama {

namespace {

constexpr std::size_t always_fits = 256;                    // characters of a match: they take 80 KiB of stack
constexpr std::size_t short_text = 4096;                    // bytes: even as one match they fit on most stacks
constexpr std::size_t reserve = std::size_t{1} << 20;       // bytes of stack for all but the match
constexpr std::size_t most_stack = std::size_t{512} << 20;  // bytes; the unused part takes address space only
constexpr std::size_t probe_stack = std::size_t{16} << 20;  // bytes of stack for one probe
constexpr std::size_t probe_size = 1000;                    // characters of one probe
constexpr std::size_t margin = 2;                           // the stack is this many times as large as measured
constexpr std::size_t least_depth = 16;                     // bytes of stack for each character: fewer are no recursion

// Texts that make a long match when repeated, one for each class of characters in tokenizers' regular expressions.
const std::array<const char *, 18> probes = {"a",
                                             "A",
                                             "1",
                                             "-",
                                             "$",
                                             ".",
                                             " ",
                                             "\n",
                                             "\xc3\xa9",
                                             "\xe4\xb8\xad",
                                             "\xe3\x81\x82",
                                             "\xea\xb0\x80",
                                             "\xf0\x9f\xa6\x99",
                                             "\xcc\x81",
                                             "\xc2\xa0",
                                             "\x01",
                                             "_",
                                             "/\n"};
const char * const words = "word ";
const char * const sentences = "Hello, my World 12! It's a\n";

std::string repeated(const char * unit) {
    std::string text;
    std::size_t characters = 0;
    while (characters < probe_size) {
        for (const char * at = unit; *at != '\0'; ++at) {
            text.push_back(*at);
            characters += (static_cast<unsigned char>(*at) & 0xC0U) == 0x80U ? 0 : 1;
        }
    }
    return text;
}

// Iterates over the characters of a text as llama.cpp does: an invalid UTF-8 byte counts as a character.
class Characters {
public:
    explicit Characters(const std::string & text) : text_(text) {}

    bool next() {
        if (at_ == text_.size()) {
            return false;
        }
        const unsigned char lead = byte(at_);
        std::size_t size = lead < 0xC0U ? 1 : lead < 0xE0U ? 2 : lead < 0xF0U ? 3 : lead < 0xF8U ? 4 : 1;
        size = std::min(size, text_.size() - at_);
        point_ = size == 1 ? lead : lead & (0x7FU >> size);
        for (std::size_t i = 1; i < size; ++i) {
            if ((byte(at_ + i) & 0xC0U) != 0x80U) {
                size = 1;
                point_ = 0xFFFD;
                break;
            }
            point_ = point_ << 6U | (byte(at_ + i) & 0x3FU);
        }
        at_ += size;
        return true;
    }

    bool is_space() const { return point_ == ' ' || point_ == '\t'; }
    bool is_white() const {
        return point_ <= ' ' || point_ == 0x85 || point_ == 0xA0 || point_ == 0x1680 ||
               (0x2000 <= point_ && point_ <= 0x200A) || point_ == 0x2028 || point_ == 0x2029 || point_ == 0x202F ||
               point_ == 0x205F || point_ == 0x3000;
    }
    bool is_letter() const {
        const std::uint32_t lower = point_ | 0x20U;
        return point_ >= 0x80 || ('a' <= lower && lower <= 'z');
    }
    bool is_digit() const { return '0' <= point_ && point_ <= '9'; }
    bool is_line_end() const { return point_ == '\n' || point_ == '\r'; }
    bool is_ascii() const { return point_ < 0x80; }

private:
    unsigned char byte(std::size_t at) const { return static_cast<unsigned char>(text_[at]); }

    const std::string & text_;
    std::size_t at_ = 0;
    std::uint32_t point_ = 0;
};

}  // namespace

std::size_t longest_match(const std::string & text, const TokenizerDepth & depth) {
    std::size_t longest = 0;
    std::size_t run = 0;
    bool was_white = false;
    bool was_line_end = false;
    bool was_separator = false;
    Characters characters(text);
    while (characters.next()) {
        const bool at_space = depth.spaces_end && characters.is_space() && !was_white;
        const bool at_letter = depth.letters_begin && characters.is_letter() && was_separator;
        const bool at_line = depth.lines_end && was_line_end && !characters.is_white() &&
                             (characters.is_letter() || characters.is_digit());
        run = at_space || at_line || at_letter ? 1 : run + 1;
        longest = std::max(longest, run);
        was_white = characters.is_white();
        was_line_end = characters.is_line_end();
        was_separator = characters.is_ascii() && !characters.is_letter() && !characters.is_space();
    }
    return longest;
}

std::vector<int32_t> Tokenizer::tokens(const std::string & text, bool add_bos, bool special) const {
    if (text.size() > static_cast<std::size_t>(std::numeric_limits<int32_t>::max()) / 2) {
        throw std::invalid_argument("the text has " + std::to_string(text.size()) +
                                    " bytes: llama.cpp tokenizes up to 1 GiB at once, so give it in parts");
    }
    const std::size_t stack = stack_for(text);
    if (stack == 0) {
        return direct(text, add_bos, special);
    }
    const std::size_t bytes = depth().bytes;
    const std::size_t match = stack / bytes;
    const std::size_t most = (most_stack - reserve) / (margin * bytes);
    if (match > most) {
        throw std::invalid_argument("the text has " + std::to_string(match) +
                                    " characters at a stretch without a place where this model's tokenizer cuts it, "
                                    "such as a space; llama.cpp calls itself once for each of them, and there is "
                                    "stack for at most " +
                                    std::to_string(most) + ": shorten it, or give it in parts");
    }
    std::vector<int32_t> found;
    try {
        on_stack(reserve + margin * stack, false, [&] { found = direct(text, add_bos, special); });
    } catch (const std::bad_alloc &) {
        throw std::invalid_argument("the system has no memory to tokenize a text with " + std::to_string(match) +
                                    " characters at a stretch: shorten it, or give it in parts");
    }
    return found;
}

std::size_t Tokenizer::stack_for(const std::string & text) const {
    if (text.size() <= always_fits || !has_deep_stacks()) {
        return 0;
    }
    if (text.size() <= short_text && longest_match(text, {}) <= always_fits) {  // words: no need to measure
        return 0;
    }
    const TokenizerDepth found = depth();
    const std::size_t match = found.bytes == 0 ? 0 : longest_match(text, found);
    return match <= always_fits ? 0 : found.bytes * match;
}

std::vector<int32_t> Tokenizer::direct(const std::string & text, bool add_bos, bool special) const {
    std::vector<int32_t> found(text.size() + 2);
    const auto call = [&] {
        return api_.llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), found.data(),
                                   static_cast<int32_t>(found.size()), add_bos, special);
    };
    int32_t count = 0;
    try {
        count = call();
        if (count == std::numeric_limits<int32_t>::min()) {
            throw std::length_error("it has more tokens than can be counted");
        }
        if (count < 0) {
            found.resize(static_cast<std::size_t>(-count));
            count = call();
        }
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        throw std::invalid_argument(std::string("llama.cpp cannot tokenize this text (") + error.what() +
                                    "): give another, or token ids");
    }
    found.resize(static_cast<std::size_t>(std::max(count, 0)));
    return found;
}

TokenizerDepth Tokenizer::depth() const {
    std::int64_t known = known_.load();
    if (known < 0) {
        const TokenizerDepth found = measured();
        known = static_cast<std::int64_t>(found.bytes) * 8 + (found.spaces_end ? 4 : 0) + (found.lines_end ? 2 : 0) +
                (found.letters_begin ? 1 : 0);
        known_.store(known);
    }
    return {static_cast<std::size_t>(known / 8), (known & 4) != 0, (known & 2) != 0, (known & 1) != 0};
}

TokenizerDepth Tokenizer::measured() const {
    const std::size_t base = used_by("a");
    const auto depth_of = [&](const char * unit) {
        const std::size_t used = used_by(repeated(unit));
        const std::size_t bytes = used > base ? (used - base) / probe_size : 0;
        return bytes < least_depth ? std::size_t{0} : bytes + 1;
    };
    TokenizerDepth found;
    for (const char * unit : probes) {
        found.bytes = std::max(found.bytes, depth_of(unit));
    }
    const std::size_t of_words = depth_of(words);
    const std::size_t of_sentences = depth_of(sentences);
    found.bytes = std::max({found.bytes, of_words, of_sentences});
    found.spaces_end = of_words == 0;
    found.lines_end = of_sentences == 0;
    found.letters_begin = found.lines_end && !found.spaces_end;
    return found;
}

std::size_t Tokenizer::used_by(const std::string & text) const {
    return on_stack(probe_stack, true, [&] {
        try {
            direct(text, false, false);
        } catch (const std::invalid_argument &) {  // NOLINT(bugprone-empty-catch)
            // A vocabulary that cannot write the text does not show a depth.
        }
    });
}

int32_t Tokenizer::tokenize(const Tokenizer * self, const char * text, int32_t size, int32_t * tokens, int32_t room,
                            bool add_bos, bool special) noexcept {
    try {
        const std::vector<int32_t> found =
            self->tokens(std::string(text, static_cast<std::size_t>(std::max(size, 0))), add_bos, special);
        const auto count = static_cast<int32_t>(found.size());
        if (count > room) {
            return -count;
        }
        std::copy(found.begin(), found.end(), tokens);
        return count;
    } catch (...) {
        return 0;
    }
}

}  // namespace specllama
