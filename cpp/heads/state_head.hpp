// Heads that read the target's final state, after its last norm, and predict the tokens after the next one: Medusa (Cai
// et al. 2024, arXiv 2401.10774), Hydra (Ankner et al. 2024, arXiv 2402.05109) and blockwise parallel heads (Stern et
// al. 2018, arXiv 1811.03115). llama.cpp has no graph for them. Knows neither llama.cpp nor Python.
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

// A head. It reads the state s of the token before the text's last one. Place k (from 0) is the position after k
// drafted tokens. The logits of place k are an output matrix times x_k:
//
// Medusa: x_k is s after the layers of place k. Hydra: the first of these layers reads s, the embedding of the text's
// last token, and the embeddings of the k drafted ones. Blockwise: x_k = s + part k of W2 relu(W1 s + b1) + b2 (section
// 6 and figure 2).
class StateHead {
public:
    struct Parts {
        std::size_t n_embd = 0;
        std::size_t n_vocab = 0;                         // tokens of the target
        std::vector<std::vector<ResidualLayer>> places;  // the layers of each place
        std::vector<Linear> hidden;                      // for blockwise heads: W1 and W2; else empty
        std::vector<Linear> outputs;                     // one for all places, or one for each
        std::vector<std::int32_t> tokens;                // the tokens of the outputs' rows; empty: 0 to n_vocab - 1
        std::optional<Rows> embeddings;                  // for Hydra: the embeddings of all tokens
    };

    // Throws std::invalid_argument for parts that do not fit together.
    explicit StateHead(Parts parts);

    std::size_t n_embd() const { return parts_.n_embd; }
    std::size_t n_vocab() const { return parts_.n_vocab; }
    // The number of places.
    std::size_t size() const { return parts_.places.size(); }
    // Whether the logits of a place depend on the tokens before it.
    bool reads_tokens() const { return parts_.embeddings.has_value(); }

    // Computes the logits of the places [first, first + count): out [count][num_said()].
    //
    // state: [n_embd]. tokens: [first + count], the text's last token and the drafted ones after it; they must be
    // tokens of the target, and are read only if reads_tokens().
    void say(const float * state, const std::int32_t * tokens, std::size_t first, std::size_t count,
             std::vector<float> & out) const;
    // How many logits a place has: one for each token that the head can draft.
    std::size_t num_said() const { return parts_.outputs.front().weight->num_rows(); }

    // Spreads a row of these logits over all tokens of the target, out [n_vocab]. Tokens that the head does not have
    // get minus infinity.
    void spread(const float * logits, std::vector<float> & out) const;

private:
    void through_layers(std::size_t place, std::vector<float> & x) const;
    std::vector<float> input(const float * state, const std::int32_t * tokens, std::size_t place) const;

    Parts parts_;
};

}  // namespace specllama
