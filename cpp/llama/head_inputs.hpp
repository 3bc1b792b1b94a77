// The inputs of a head beside tokens: hidden states of its target, or its own hidden states of the tokens before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llama/batch.hpp"
#include "llama/llama_api.hpp"
#include "llama/taps.hpp"

namespace specllama {

class Decoder;

// The input of a head that drafts several tokens in one decode: the last token of the text, then masks. The target's
// states of the earlier text go into the head's memory in a batch without tokens.
struct NoiseBlock {
    std::size_t size = 0;   // tokens of the longest block
    int32_t mask = 0;       // the token in the places that are not known yet
    std::size_t first = 0;  // the first place of the block that drafts a token
    // A block must have the full size: the graph that chains its places needs blocks of one size in a batch.
    bool is_whole = false;
    // If above 0: each place chooses among this many tokens, depending on the token of the place before it. A state
    // then holds the ids of these tokens, then their scores for each candidate of the place before. 0: the logits are
    // used.
    std::size_t num_candidates = 0;
};

// The hidden states that a decoder returns, and the hidden states that it reads.
struct HiddenStates {
    // Which tensors to read. For a head: its own state, then, if it has an encoder, the encoder's output. For a target:
    // the states that a head is to read, in this order. Null: none.
    std::shared_ptr<Taps> taps = nullptr;
    std::size_t n_features = 0;  // floats that a head reads from the target for each token; 0: not a head
    std::size_t width = 0;       // floats of a token in each of these tensors
    bool encodes = false;        // a head's own encoder transforms the features first
    std::optional<NoiseBlock> block = std::nullopt;  // for a head that has one
    bool of_wanted = false;                          // states exist only for tokens whose logits are wanted
    // For MTP layers, the i-th of which predicts the i-th token: how many there are, and libllama's function that
    // chooses which layer computes the next batch. Null: there is only one layer.
    std::size_t num_layers = 1;
    void (*choose_layer)(llama_context *, int32_t) = nullptr;
    // For a head that reads its target's memory and writes none: the decoder of the target. Null: the decoder has a
    // memory of its own.
    std::shared_ptr<Decoder> target = nullptr;

    // How many tensors the hidden state of a token consists of. The output of a head's encoder is not one of them: it
    // is only an input.
    std::size_t num_given() const { return taps ? taps->size() - (encodes ? 1 : 0) : 0; }
    // Floats of the hidden state of one token.
    std::size_t size() const { return num_given() * width; }
};

// The inputs of a head's batches. `hidden` must outlive this object.
class HeadInputs {
public:
    // `name`: of the decoder, for messages.
    HeadInputs(std::shared_ptr<const LlamaApi> api, const HiddenStates & hidden, std::string name)
        : api_(std::move(api)), hidden_(hidden), name_(std::move(name)) {}

    // For a head with a noise block: puts the target's states into the memory, in a batch of their own. Only keys and
    // values are computed from them. Returns the code of llama_decode.
    int32_t inject(llama_context * context, const BatchPart * parts, std::size_t num_parts);

    // For other heads: collects the hidden states that they read beside the tokens of all parts. The target's states go
    // through the encoder, if there is one. Returns the code of llama_encode.
    int32_t collect(llama_context * context, const BatchPart * parts, std::size_t num_parts);
    // The inputs that collect() has collected last, for each token of the batch.
    float * data() { return inputs_.data(); }

private:
    int32_t encode(llama_context * context, const float * features, std::size_t count);

    std::shared_ptr<const LlamaApi> api_;
    const HiddenStates & hidden_;
    std::string name_;
    std::vector<float> inputs_;
    std::vector<float> features_;
    // The other arrays of a batch of injected states.
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequence_counts_;
    std::vector<int32_t> sequence_ids_;
    std::vector<int32_t *> sequence_pointers_;
    std::vector<int8_t> outputs_;
};

}  // namespace specllama
