// The window and the pool of lookahead decoding (Fu et al. 2024, arXiv 2402.02057, algorithm 2; the details are those
// of llama.cpp's examples/lookahead). Knows neither llama.cpp nor Python.
//
// The window has N - 1 levels of W tokens. Level 0 guesses the text's next W tokens. Each further level guesses which
// token follows each token of the level before, as the target said it one step earlier. Column i of the levels is a run
// of N - 1 tokens. The token that the target says after the run makes it an n-gram of N tokens. All W such tokens are
// the new last level (a Jacobi iteration).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace specllama {

class LookaheadWindow {
public:
    // W columns, n-grams of N tokens, and up to G n-grams that are kept for each first token. Throws
    // std::invalid_argument unless each is within its bounds.
    LookaheadWindow(std::int64_t columns, std::int64_t n_gram, std::int64_t most_kept);

    static constexpr std::int64_t most_columns = 60;  // each needs a sequence; older llama.cpps have only 64
    static constexpr std::int64_t least_gram = 3;     // so that there are at least two levels
    static constexpr std::int64_t most_gram = 16;
    static constexpr std::int64_t most_of_token = 1024;

    std::size_t columns() const { return columns_; }
    std::size_t n_gram() const { return n_gram_; }

    // Begins another text, and forgets everything. The window begins with these guesses [N - 1][W].
    void begin(std::vector<std::vector<int32_t>> levels);

    // [N - 1][W]; empty before a text has begun.
    const std::vector<std::vector<int32_t>> & levels() const { return levels_; }

    // Says that the text went on by `count` >= 1 tokens. said [W]: the tokens that the target said after the last
    // level.
    void advance(const std::vector<int32_t> & said, std::size_t count);

    // The N - 1 tokens behind `first` in the newest n-gram that begins with it; null: there is none.
    const std::vector<int32_t> * newest(int32_t first) const;
    // The N - 1 tokens behind `first` in each n-gram that begins with it, the oldest first.
    std::vector<std::vector<int32_t>> pool(int32_t first) const;

private:
    // The last G n-grams of one first token, in a ring.
    struct Kept {
        std::vector<std::vector<int32_t>> grams;
        std::size_t next = 0;  // the place of the next n-gram
    };

    void keep(int32_t first, std::vector<int32_t> rest);

    std::size_t columns_;
    std::size_t n_gram_;
    std::size_t most_kept_;
    std::vector<std::vector<int32_t>> levels_;
    std::unordered_map<int32_t, Kept> pool_;  // by the first token
};

}  // namespace specllama
