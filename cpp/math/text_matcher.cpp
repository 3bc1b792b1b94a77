// Finds several texts in many words, in one pass over each word (Aho and Corasick 1975).
#include "math/text_matcher.hpp"

#include <queue>

namespace specllama {

TextMatcher::TextMatcher(const std::vector<std::string> & texts) : states_(1) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
        add(texts[i], std::uint64_t{1} << i);
    }
    connect();
}

void TextMatcher::add(const std::string & text, std::uint64_t bit) {
    std::size_t state = 0;
    for (const char byte : text) {
        if (state != 0) {
            states_[state].through |= bit;
        }
        const auto index = static_cast<std::uint8_t>(byte);
        if (states_[state].next[index] == 0) {
            const std::size_t depth = states_[state].depth + 1;
            states_[state].next[index] = states_.size();
            states_.emplace_back().depth = depth;
        }
        state = states_[state].next[index];
    }
    states_[state].complete |= bit;
}

// States are visited by depth, so that the states of shorter beginnings are connected first.
void TextMatcher::connect() {
    std::queue<std::size_t> waiting({0});
    for (; !waiting.empty(); waiting.pop()) {
        const std::size_t state = waiting.front();
        const std::size_t shorter = states_[state].shorter;
        states_[state].complete |= states_[shorter].complete;
        for (std::size_t byte = 0; byte < states_[state].next.size(); ++byte) {
            const std::size_t next = states_[state].next[byte];
            const std::size_t of_shorter = state == 0 ? 0 : states_[shorter].next[byte];
            if (next == 0) {
                states_[state].next[byte] = of_shorter;
            } else {
                states_[next].shorter = of_shorter;
                waiting.push(next);
            }
        }
    }
}

TextMatcher::Match TextMatcher::match(const std::string & word) const {
    Match match;
    for (const char byte : word) {
        match.end = states_[match.end].next[static_cast<std::uint8_t>(byte)];
        match.contained |= states_[match.end].complete;
    }
    return match;
}

std::vector<std::pair<std::size_t, std::size_t>> TextMatcher::begun(std::size_t end) const {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    for (std::size_t state = end; state != 0; state = states_[state].shorter) {
        for (std::size_t i = 0; i < most_texts; ++i) {
            if ((states_[state].through >> i & 1U) != 0) {
                found.emplace_back(i, states_[state].depth);
            }
        }
    }
    return found;
}

}  // namespace specllama
