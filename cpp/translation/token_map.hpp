// Maps the tokens of a draft's vocabulary to its target's, if the two vocabularies differ. Knows neither llama.cpp nor
// Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/token_list.hpp"

namespace specllama {

// Writes a draft's logits to out [num_target], at the target's tokens. A token that cannot be drafted gets minus
// infinity. drafted: for each token of the draft, the target's token that it drafts; -1: none. listed: the draft's
// tokens whose logits were computed; null: all. Returns how many tokens can be drafted.
std::size_t spread(const std::vector<int32_t> & drafted, std::size_t num_target, const float * logits,
                   const TokenList * listed, std::vector<float> & out);

class TokenMap {
public:
    // read: for each token of the target, the token that the draft reads in its place. drafted: see spread() above.
    // Throws std::invalid_argument for an entry that is no token.
    TokenMap(std::vector<int32_t> read, std::vector<int32_t> drafted);

    // The draft's token for a token of the target. A number below 0, which stands for a part of an image, stays as it
    // is.
    int32_t read(int32_t token) const { return token < 0 ? token : read_[static_cast<std::size_t>(token)]; }
    // Whether all tokens that can be drafted have equal ids in both vocabularies, so that logits need no mapping.
    bool keeps_ids() const { return keeps_ids_; }
    std::size_t spread(const float * logits, const TokenList * listed, std::vector<float> & out) const {
        return specllama::spread(drafted_, read_.size(), logits, listed, out);
    }

private:
    std::vector<int32_t> read_;
    std::vector<int32_t> drafted_;
    bool keeps_ids_ = true;
};

}  // namespace specllama
