// The parts of one batch of a decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/token_list.hpp"

namespace specllama {

// A text may have positions without a token, such as those of an image that a chat handler has decoded. Such a position
// has an id of its own, which is this number or lower (engine/position.py).
constexpr int32_t first_embedding = -(1 << 30);
inline bool is_embedding(int32_t id) { return id <= first_embedding; }

// A row of a batch that is not part of the text: a token that might come later, and which rows it sees. A branch sees
// the text up to the text's last token that is not a draft (the first token whose logits are wanted), and earlier rows
// of the branch. The memory holds such rows and branches only while the batch is decoded.
struct BranchRow {
    int32_t token = 0;
    std::size_t ahead = 0;         // positions after the text's last token, from 1
    std::size_t branch = 0;        // the first branch that the row belongs to, from 0
    std::size_t num_branches = 1;  // the row belongs to this many branches, beginning with `branch`
    bool wanted = false;           // whether its logits are wanted
};

// A value of BatchPart::layer: all MTP layers compute the batch, one after the other.
constexpr int32_t all_layers = -1;

// What one sequence adds to a batch.
struct BatchPart {
    const int32_t * tokens = nullptr;  // [count]
    std::size_t count = 0;
    std::size_t first_output = 0;        // logits are wanted from this token on
    const TokenList * listed = nullptr;  // logits are wanted of these tokens only; null: of all
    // For a head's sequence: the hidden states that the head reads beside each token. Either the target's states
    // [count][n_features], or the head's own states [count][state_size].
    const float * features = nullptr;
    const float * states = nullptr;
    bool keeps_states = false;  // copy_states() will be called
    // For a head with a noise block: in place of the first num_injected tokens, the head reads their features.
    std::size_t num_injected = 0;
    // Used only if this is the only part of the batch. The branch rows follow the part's rows. The tokens of branch i
    // have the seq_id of the part + 1 + i.
    const std::vector<BranchRow> * branch_rows = nullptr;
    // Copies of the last token that are decoded behind it, and forgotten: see Decoder::wants_equal_lengths().
    std::size_t padding = 0;
    // With several MTP layers: which one computes the batch, from 0, or all_layers. Equal in all parts of a batch.
    int32_t layer = 0;
    int32_t seq_id = 0;
    std::size_t position = 0;  // of the first token
};

}  // namespace specllama
