// What a head can learn from a text: of each token that the target has decoded, its hidden state and the target's
// likeliest next tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/logits_scan.hpp"

namespace specllama {

class Examples {
public:
    // state_size: floats of a hidden state. num_likely: how many of the next tokens are kept.
    Examples(std::size_t state_size, std::size_t num_likely) : state_size_(state_size), num_likely_(num_likely) {}

    std::size_t state_size() const { return state_size_; }
    std::size_t num_likely() const { return num_likely_; }
    std::size_t size() const { return places.size(); }

    // Adds the token at a position of the text: its state, and the raw logits [n_vocab] of the token after it.
    void add(std::size_t place, const float * state, const float * logits, std::size_t n_vocab);
    // Forgets the tokens from this position on.
    void forget_from(std::size_t place);

    // Row i belongs to the token at places[i]. The positions ascend; some may be missing, where the target has decoded
    // without this object.
    std::vector<std::int32_t> places;
    std::vector<float> states;         // [size()][state_size]
    std::vector<std::int32_t> likely;  // [size()][num_likely]: ids, the likeliest first
    std::vector<float> shares;         // [size()][num_likely]: their probabilities; 0 where there are no more tokens

private:
    std::size_t state_size_;
    std::size_t num_likely_;
    std::vector<Candidate> best_;
};

}  // namespace specllama
