// Heads that read the target's final state.
#include "heads/state_head.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace specllama {

namespace {

float silu(float x) { return x / (1.0F + std::exp(-x)); }

void require(bool fits, const char * what) {
    if (!fits) {
        throw std::invalid_argument(std::string("the parts of the head do not fit together: ") + what);
    }
}

void require_linear(const Linear & linear, std::size_t rows, std::size_t columns, const char * what) {
    require(linear.weight && linear.weight->num_rows() == rows && linear.weight->num_columns() == columns, what);
    require(linear.bias.empty() || linear.bias.size() == rows, what);
}

}  // namespace

void Linear::apply(const float * x, std::size_t count, std::vector<float> & out) const {
    const std::size_t rows = weight->num_rows();
    out.resize(count * rows);
    weight->multiply(x, count, out.data());
    for (std::size_t i = 0; !bias.empty() && i < out.size(); ++i) {
        out[i] += bias[i % rows];
    }
}

StateHead::StateHead(Parts parts) : parts_(std::move(parts)) {
    const std::size_t d = parts_.n_embd, count = parts_.places.size();
    require(d > 0 && count > 0, "it says nothing");
    require(parts_.outputs.size() == 1 || parts_.outputs.size() == count, "an output for all places, or one of each");
    const std::size_t said = parts_.tokens.empty() ? parts_.n_vocab : parts_.tokens.size();
    for (const Linear & output : parts_.outputs) {
        require_linear(output, said, d, "an output needs a row for each token that is said");
    }
    require(std::all_of(
                parts_.tokens.begin(), parts_.tokens.end(),
                [this](std::int32_t token) { return token >= 0 && static_cast<std::size_t>(token) < parts_.n_vocab; }),
            "a token that the target does not have");
    if (!parts_.hidden.empty()) {
        require(parts_.hidden.size() == 2 && parts_.hidden[0].weight != nullptr, "a hidden layer has two matrices");
        const std::size_t size = parts_.hidden[0].weight->num_rows();
        require_linear(parts_.hidden[0], size, d, "its hidden layer reads a state");
        require_linear(parts_.hidden[1], count * d, size, "its hidden layer gives a state for each place");
    }
    for (std::size_t k = 0; k < count; ++k) {
        for (std::size_t i = 0; i < parts_.places[k].size(); ++i) {
            const ResidualLayer & layer = parts_.places[k][i];
            const bool reads = reads_tokens() && i == 0;
            const std::size_t columns = reads ? (k + 2) * d : d;
            require_linear(layer.curved, d, columns, "a layer reads a state, and of Hydra embeddings");
            require(layer.straight.has_value() || !reads, "a layer that reads embeddings is no residual one");
            if (layer.straight) {
                require_linear(*layer.straight, d, columns, "a layer reads a state, and of Hydra embeddings");
            }
        }
        require(!reads_tokens() || !parts_.places[k].empty(), "a place of Hydra's has a layer");
    }
    if (parts_.embeddings) {
        require(parts_.embeddings->num_columns() == d && parts_.embeddings->num_rows() >= parts_.n_vocab,
                "an embedding for each token of the target");
    }
}

std::vector<float> StateHead::input(const float * state, const std::int32_t * tokens, std::size_t place) const {
    const std::size_t d = parts_.n_embd;
    std::vector<float> x(state, state + d);
    if (!parts_.embeddings) {
        return x;
    }
    x.resize((place + 2) * d);
    for (std::size_t i = 0; i <= place; ++i) {
        parts_.embeddings->copy(static_cast<std::size_t>(tokens[i]), x.data() + (i + 1) * d);
    }
    return x;
}

void StateHead::through_layers(std::size_t place, std::vector<float> & x) const {
    std::vector<float> curved;
    std::vector<float> straight;
    for (const ResidualLayer & layer : parts_.places[place]) {
        layer.curved.apply(x.data(), 1, curved);
        if (layer.straight) {
            layer.straight->apply(x.data(), 1, straight);
            x.swap(straight);
        }
        for (std::size_t i = 0; i < curved.size(); ++i) {
            x[i] += silu(curved[i]);
        }
    }
}

void StateHead::say(const float * state, const std::int32_t * tokens, std::size_t first, std::size_t count,
                    std::vector<float> & out) const {
    const std::size_t d = parts_.n_embd;
    std::vector<float> added;
    if (!parts_.hidden.empty()) {
        std::vector<float> hidden;
        parts_.hidden[0].apply(state, 1, hidden);
        std::transform(hidden.begin(), hidden.end(), hidden.begin(), [](float x) { return std::max(x, 0.0F); });
        parts_.hidden[1].apply(hidden.data(), 1, added);
    }
    std::vector<float> all;
    all.reserve(count * d);
    for (std::size_t k = first; k < first + count; ++k) {
        std::vector<float> x = input(state, tokens, k);
        for (std::size_t i = 0; i < d && !added.empty(); ++i) {
            x[i] += added[k * d + i];
        }
        through_layers(k, x);
        all.insert(all.end(), x.begin(), x.end());
    }
    if (parts_.outputs.size() == 1) {
        parts_.outputs.front().apply(all.data(), count, out);  // the matrix is read once for all places
        return;
    }
    out.clear();
    std::vector<float> logits;
    for (std::size_t k = 0; k < count; ++k) {
        parts_.outputs[first + k].apply(all.data() + k * d, 1, logits);
        out.insert(out.end(), logits.begin(), logits.end());
    }
}

void StateHead::spread(const float * logits, std::vector<float> & out) const {
    if (parts_.tokens.empty()) {
        out.assign(logits, logits + parts_.n_vocab);
        return;
    }
    out.assign(parts_.n_vocab, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < parts_.tokens.size(); ++i) {
        out[static_cast<std::size_t>(parts_.tokens[i])] = logits[i];
    }
}

}  // namespace specllama
