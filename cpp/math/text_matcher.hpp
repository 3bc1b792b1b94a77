// Finds several texts in many words, in one pass over each word (Aho and Corasick 1975). Knows neither llama.cpp nor
// Python.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specllama {

class TextMatcher {
public:
    static constexpr std::size_t most_texts = 64;  // one bit for each

    // At most `most_texts` texts, none of them empty.
    explicit TextMatcher(const std::vector<std::string> & texts);

    struct Match {
        std::uint64_t contained = 0;  // the texts that occur in the word, a bit for each
        std::size_t end = 0;  // the state after the word; words with equal states end with equal beginnings of texts
        friend bool operator<(const Match & a, const Match & b) {
            return std::pair(a.end, a.contained) < std::pair(b.end, b.contained);
        }
    };
    Match match(const std::string & word) const;

    // The texts of which a beginning, but not the whole, stands at the end of a word. `end`: Match::end of that word.
    // Returns {index of the text, length of the beginning in bytes}.
    std::vector<std::pair<std::size_t, std::size_t>> begun(std::size_t end) const;

private:
    struct State {
        std::array<std::size_t, 256> next{};  // the next state, by the next byte; in state 0 no text has begun
        std::size_t shorter = 0;              // failure link: the state of the longest other beginning that ends here
        std::size_t depth = 0;                // how many bytes of a text have been seen
        std::uint64_t through = 0;            // texts that begin with these bytes and are longer
        std::uint64_t complete = 0;           // texts that end here
    };

    void add(const std::string & text, std::uint64_t bit);
    void connect();

    std::vector<State> states_;
};

}  // namespace specllama
