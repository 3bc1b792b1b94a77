// How a draft of another tokenizer reads its target's text.
#include "translation/translation.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "llama/vocabulary.hpp"

namespace specllama {

namespace {

// Bytes of a part. After least_part bytes, the next word begins a new part. If no word comes, the part ends before it
// has more than most_part bytes. Texts of this length fit the tokenizer's stack, whatever they contain.
constexpr std::size_t least_part = 64;
constexpr std::size_t most_part = 96;
constexpr std::size_t longest_part = 144;  // bytes; the limit where a shorter part would end within a character

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }
bool is_letter(char byte) {
    const auto lower = static_cast<unsigned char>(byte) | 0x20U;
    return 'a' <= lower && lower <= 'z';
}
bool is_printed(char byte) { return ' ' < byte && byte < 0x7F; }

// The number of bytes of the character that a text begins with; 0 if it does not begin with a whole character.
std::size_t character(std::string_view text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t size = lead < 0x80U   ? 1
                             : lead < 0xC2U ? 0
                             : lead < 0xE0U ? 2
                             : lead < 0xF0U ? 3
                             : lead < 0xF5U ? 4
                                            : 0;
    if (size == 0 || size > text.size()) {
        return 0;
    }
    for (std::size_t i = 1; i < size; ++i) {
        if (!is_continuation(text[i])) {
            return 0;
        }
    }
    const auto next = size > 1 ? static_cast<unsigned char>(text[1]) : 0U;
    const bool is_none = (lead == 0xE0U && next < 0xA0U) || (lead == 0xEDU && next >= 0xA0U) ||
                         (lead == 0xF0U && next < 0x90U) || (lead == 0xF4U && next >= 0x90U);
    return is_none ? 0 : size;
}

bool ends_within_character(std::string_view text) {
    std::size_t back = 1;
    while (back < 4 && back < text.size() && is_continuation(text[text.size() - back])) {
        ++back;
    }
    return !text.empty() && static_cast<unsigned char>(text.back()) >= 0x80U &&
           character(text.substr(text.size() - back)) != back;
}

// Whether `piece` begins a word. Every tokenizer cuts a text before such a word, whatever text surrounds it.
bool begins_word(std::string_view before, std::string_view piece) {
    return piece.size() > 1 && piece[0] == ' ' && is_letter(piece[1]) && is_printed(before.back());
}

bool begins_part(std::string_view before, std::string_view piece) {
    if (before.size() >= least_part && begins_word(before, piece)) {
        return true;
    }
    const std::size_t size = before.size() + piece.size();
    return !before.empty() && size > most_part &&
           (size > longest_part || (!is_continuation(piece[0]) && !ends_within_character(before)));
}

// The token that stands for a text. If several tokens have this text, it is the first one that is no byte token, else
// the first.
struct Named {
    int32_t token;
    bool is_byte;
};
using Texts = std::unordered_map<std::string, Named>;

struct Words {
    std::vector<std::string> pieces;  // by token; empty if the token is not of text
    Texts texts;
    std::unordered_map<std::string, int32_t> names;  // the tokens that are not of text, by name

    Words(const LlamaApi & api, const llama_vocab * vocab) {
        for (TokenWord & word : token_words(api, vocab)) {
            const auto token = static_cast<int32_t>(pieces.size());
            if (word.piece.empty()) {
                names.emplace(std::move(word.name), token);
            } else {
                add(word, token);
            }
            pieces.push_back(std::move(word.piece));
        }
    }

    void add(const TokenWord & word, int32_t token) {
        const bool is_byte = word.piece.size() == 1 && std::string_view(word.name).substr(0, 3) == "<0x";
        const auto [found, is_new] = texts.emplace(word.piece, Named{token, is_byte});
        if (!is_new && found->second.is_byte && !is_byte) {
            found->second = {token, false};
        }
    }
};

// Whether a tokenizer puts a space before each text.
bool adds_space(const Tokenizer & tokenizer, const Words & words) {
    try {
        const std::vector<int32_t> found = tokenizer.tokens("a", false, false);
        const auto first = found.empty() ? words.pieces.size() : static_cast<std::size_t>(found[0]);
        return first < words.pieces.size() && words.pieces[first].substr(0, 1) == " ";
    } catch (const std::invalid_argument &) {
        return false;
    }
}

}  // namespace

Translation::Translation(const LlamaApi & api, const llama_vocab * target, const llama_vocab * draft,
                         const std::vector<std::pair<int32_t, int32_t>> & roles, int32_t opening)
    : tokenizer_(api, draft), bytes_(256, -1) {
    const Words ours(api, target);
    const Words theirs(api, draft);
    num_of_text_ = ours.texts.size();
    num_of_draft_ = theirs.texts.size();
    drafted_.assign(theirs.pieces.size(), -1);
    read_.reserve(ours.pieces.size());
    ends_.reserve(ours.pieces.size());
    specials_.assign(ours.pieces.size(), -1);
    for (const std::string & piece : ours.pieces) {
        const auto found = piece.empty() ? theirs.texts.end() : theirs.texts.find(piece);
        const bool is_common = found != theirs.texts.end();
        read_.push_back(is_common ? found->second.token : piece.empty() ? nothing : by_text);
        pieces_ += piece;
        ends_.push_back(pieces_.size());
    }
    for (const auto & [text, named] : theirs.texts) {
        const auto found = ours.texts.find(text);
        if (found != ours.texts.end()) {
            drafted_[static_cast<std::size_t>(named.token)] = found->second.token;
            ++num_common_;
        }
        if (text.size() == 1) {
            bytes_[static_cast<unsigned char>(text[0])] = named.token;
        }
    }
    for (const auto & [name, token] : ours.names) {
        const auto found = theirs.names.find(name);
        specials_[static_cast<std::size_t>(token)] = found == theirs.names.end() ? -1 : found->second;
    }
    for (const auto & [of_target, of_draft] : roles) {
        if (of_target >= 0 && static_cast<std::size_t>(of_target) < specials_.size() && is_of_draft(of_draft)) {
            specials_[static_cast<std::size_t>(of_target)] = of_draft;
        }
    }
    opening_ = is_of_draft(opening) ? opening : -1;
    target_adds_space_ = adds_space(Tokenizer(api, target), ours);
    if (adds_space(tokenizer_, theirs) && !tokenize_run("\n", true, guard_)) {
        guard_.clear();
    }
}

std::string_view Translation::piece(int32_t token) const {
    if (token < 0 || static_cast<std::size_t>(token) >= ends_.size()) {
        return {};
    }
    const auto index = static_cast<std::size_t>(token);
    const std::size_t first = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(pieces_).substr(first, ends_[index] - first);
}

int32_t Translation::special(int32_t token) const {
    return token < 0 || static_cast<std::size_t>(token) >= specials_.size()
               ? -1
               : specials_[static_cast<std::size_t>(token)];
}

void Translation::read_token(int32_t token, std::vector<int32_t> & out) const {
    const int32_t known =
        token < 0 || static_cast<std::size_t>(token) >= read_.size() ? nothing : read_[static_cast<std::size_t>(token)];
    if (known >= 0) {
        out.push_back(known);
    } else if (known == by_text) {
        tokenize(piece(token), false, out);
    } else if (special(token) >= 0) {
        out.push_back(special(token));
    }
}

void Translation::tokenize(std::string_view text, bool as_beginning, std::vector<int32_t> & out) const {
    std::string run;
    const auto end_run = [&] {
        if (!run.empty()) {
            tokenize_characters(run, as_beginning, out);
            as_beginning = false;
            run.clear();
        }
    };
    while (!text.empty()) {
        const std::size_t size = character(text);
        if (size > 0) {
            run += text.substr(0, size);
        } else {
            end_run();
            if (const int32_t byte = bytes_[static_cast<unsigned char>(text[0])]; byte >= 0) {
                out.push_back(byte);
            }
        }
        text.remove_prefix(std::max<std::size_t>(size, 1));
    }
    end_run();
}

// Leaves out only the characters that the draft's vocabulary cannot write.
void Translation::tokenize_characters(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const {
    if (tokenize_run(text, as_beginning, out)) {
        return;
    }
    for (std::string_view left = text; !left.empty();) {
        const std::size_t size = std::max<std::size_t>(character(left), 1);
        const int32_t byte = size == 1 ? bytes_[static_cast<unsigned char>(left[0])] : -1;
        if (byte >= 0) {
            out.push_back(byte);
        } else {
            tokenize_run(std::string(left.substr(0, size)), as_beginning, out);
        }
        as_beginning = false;
        left.remove_prefix(size);
    }
}

// Returns false, and adds nothing, if the text cannot be tokenized. If a tokenizer puts a space before each text, this
// function puts a line end before the text. The space comes before the line end then, and the tokens of both are
// dropped.
bool Translation::tokenize_run(const std::string & text, bool as_beginning, std::vector<int32_t> & out) const {
    const bool is_guarded = !as_beginning && !guard_.empty();
    std::vector<int32_t> found;
    try {
        found = tokenizer_.tokens(is_guarded ? "\n" + text : text, false, false);
        if (is_guarded) {
            if (found.size() >= guard_.size() && std::equal(guard_.begin(), guard_.end(), found.begin())) {
                found.erase(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(guard_.size()));
            } else {
                found = tokenizer_.tokens(text, false, false);
            }
        }
    } catch (const std::invalid_argument &) {
        return false;
    }
    std::copy_if(found.begin(), found.end(), std::back_inserter(out),
                 [this](int32_t token) { return is_of_draft(token); });
    return true;
}

const std::vector<int32_t> & TranslatedText::read(const std::vector<int32_t> & text) {
    const auto differs = std::mismatch(text_.begin(), text_.end(), text.begin(), text.end()).first;
    const auto same = static_cast<std::size_t>(differs - text_.begin());
    if (same == text_.size() && same == text.size() && !draft_tokens_.empty()) {
        num_unchanged_ = draft_tokens_.size();
        return draft_tokens_;
    }
    // A part that began at the first changed token might not begin there now. So this part is dropped, and the part
    // before it is read again.
    while (!parts_.empty() && parts_.back().first > 0 && parts_.back().first >= same) {
        parts_.pop_back();
    }
    const Part from = parts_.empty() ? Part{0, 0} : parts_.back();
    if (!parts_.empty()) {
        parts_.pop_back();
    }
    draft_tokens_.resize(std::min(draft_tokens_.size(), from.first_of_draft));
    num_unchanged_ = draft_tokens_.size();
    text_.resize(std::min(text_.size(), from.first));
    if (from.first == 0 && translation_.opening() >= 0) {
        draft_tokens_.assign(1, translation_.opening());
    }
    begin_part(from.first);
    for (std::size_t i = from.first; i < text.size(); ++i) {
        const std::string_view piece = translation_.piece(text[i]);
        if (piece.empty()) {
            end_part();
            const int32_t special = translation_.special(text[i]);
            if (special >= 0 && !(i == 0 && special == translation_.opening())) {
                draft_tokens_.push_back(special);
            }
            begin_part(i + 1);
        } else {
            if (begins_part(open_, piece)) {
                end_part();
                begin_part(i);
            }
            open_ += piece;
        }
    }
    end_part();
    text_ = text;
    if (draft_tokens_.empty()) {
        draft_tokens_.push_back(std::max(translation_.opening(), 0));  // the draft must have a token to decode
    }
    return draft_tokens_;
}

void TranslatedText::begin_part(std::size_t first) {
    open_.clear();
    parts_.push_back({first, first == 0 ? 0 : draft_tokens_.size()});
}

void TranslatedText::end_part() {
    if (open_.empty()) {
        return;
    }
    const bool is_beginning =
        draft_tokens_.empty() || (draft_tokens_.size() == 1 && draft_tokens_[0] == translation_.opening());
    std::string_view written = open_;
    if (is_beginning && written.size() > 1 && translation_.target_adds_space() && written[0] == ' ') {
        written.remove_prefix(1);
    }
    translation_.tokenize(written, is_beginning, draft_tokens_);
    num_tokenized_ += open_.size();
    open_.clear();
}

}  // namespace specllama
