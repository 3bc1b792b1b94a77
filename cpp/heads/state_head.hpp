// Heads that read the target's final state, once it is normed, and say the tokens behind the next one: Medusa (Cai et
// al. 2024, arXiv 2401.10774), Hydra (Ankner et al. 2024, arXiv 2402.05109) and blockwise parallel heads (Stern et al.
// 2018, arXiv 1811.03115). llama.cpp has no graph for them. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "heads/matrix.hpp"

namespace specllama {

// y = W x + b.
struct Linear {
    std::shared_ptr<const Matrix> weight;
    std::vector<float> bias;  // [rows of W]; empty: none

    // x: [count][columns of W]. out: [count][rows of W].
    void apply(const float * x, std::size_t count, std::vector<float> & out) const;
};

// y = r(x) + SiLU(l(x)); without r: x + SiLU(l(x)).
struct ResidualLayer {
    Linear curved;                   // l
    std::optional<Linear> straight;  // r
};

// Reads the state s of the token before the text's last one. Place k (from 0) is behind k drafted tokens.
//
// Medusa: x_k is s after layers of its own. Hydra: the first of these reads s, the embedding of the text's last token,
// and those of the k drafted ones. Blockwise: x_k = s + part k of W2 relu(W1 s + b1) + b2, section 6 and figure 2.
// What place k says are rows of an output matrix times x_k.
class StateHead {
public:
    struct Parts {
        std::size_t n_embd = 0;
        std::size_t n_vocab = 0;                         // of the target
        std::vector<std::vector<ResidualLayer>> places;  // layers of each
        std::vector<Linear> hidden;                      // of blockwise: W1 and W2; else none
        std::vector<Linear> outputs;                     // one for all places, or one of each
        std::vector<std::int32_t> tokens;                // that the rows of the output say; empty: 0 to n_vocab
        std::optional<Rows> embeddings;                  // of all tokens: of Hydra
    };

    // Throws std::invalid_argument for parts that do not fit together.
    explicit StateHead(Parts parts);

    std::size_t n_embd() const { return parts_.n_embd; }
    std::size_t n_vocab() const { return parts_.n_vocab; }
    // How many places it says something of.
    std::size_t size() const { return parts_.places.size(); }
    // Whether what it says of a place depends on the tokens before it.
    bool reads_tokens() const { return parts_.embeddings.has_value(); }

    // What it says of the places [first, first + count): logits of the tokens of its rows [count][num_said].
    //
    // state: [n_embd]; tokens: of the text's end, from its last one on, and drafted: [first + count], read where
    // reads_tokens(): tokens of the target.
    void say(const float * state, const std::int32_t * tokens, std::size_t first, std::size_t count,
             std::vector<float> & out) const;
    std::size_t num_said() const { return parts_.outputs.front().weight->num_rows(); }

    // A row of these as logits of the target's tokens [n_vocab]: minus infinity for what it does not say.
    void spread(const float * logits, std::vector<float> & out) const;

private:
    void through_layers(std::size_t place, std::vector<float> & x) const;
    std::vector<float> input(const float * state, const std::int32_t * tokens, std::size_t place) const;

    Parts parts_;
};

}  // namespace specllama
