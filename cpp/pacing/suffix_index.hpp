// An index that finds where the end of a growing text has occurred before. Knows neither llama.cpp nor Python.
//
// The index has hash chains, as LZ77 compressors do: every n-gram of a few fixed lengths is linked to its previous
// occurrence. The longest match is looked for among the most recent occurrences of the longest n-gram that has any.
// Appending costs O(1) amortised and finding O(1), whatever the length; forgetting the last tokens costs O(1) each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specllama {

class SuffixIndex {
public:
    static constexpr std::size_t min_match = 2;     // shorter matches promise too little
    static constexpr std::size_t max_match = 64;    // longer matches count as this long
    static constexpr std::size_t max_visited = 16;  // the most occurrences that one search looks at

    struct Match {
        std::size_t next = 0;       // index of the token that followed the match; <= size()
        std::size_t length = 0;     // how many tokens agree, 0 if there is no match
        std::size_t num_other = 0;  // how many matches of this length were followed by another token
    };

    std::size_t size() const { return tokens_.size(); }
    int32_t operator[](std::size_t i) const { return tokens_[i]; }

    void append(int32_t token);
    // Forgets all but the first `count` tokens.
    void truncate(std::size_t count);

    // The longest earlier occurrence of the end of the text; the most recent one if several are as long. Occurrences
    // that are followed by a negative number, which is no token, are left out.
    Match longest() const;

    // Bytes of memory held.
    std::size_t memory() const;

private:
    // All n-grams of one length, each under the index of its last token.
    struct Grams {
        std::size_t length;
        std::vector<uint32_t> previous;  // [size]: index + 1 of the previous n-gram with the same hash; 0: none
        std::vector<uint32_t> heads;     // [power of two]: index + 1 of the last n-gram with this hash
    };

    std::size_t slot(const Grams & grams, std::size_t last) const;
    void link(Grams & grams, std::size_t last);
    void grow(Grams & grams);
    std::size_t common(std::size_t last) const;
    Match longest_of(const Grams & grams) const;

    std::vector<int32_t> tokens_;
    std::array<Grams, 2> grams_{{{4, {}, {}}, {min_match, {}, {}}}};
};

}  // namespace specllama
