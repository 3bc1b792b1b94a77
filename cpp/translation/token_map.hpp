// Which tokens of a draft's vocabulary stand for which of its target's, where the two are not the same. Knows neither
// llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "math/token_list.hpp"

namespace specllama {

// A draft's logits as those of the target's tokens [num_target]; minus infinity for what it cannot draft. drafted
// [tokens of the draft]: which of the target's each of them drafts; -1: none. listed: the logits of these alone were
// computed; null: of all. Returns how many there are.
std::size_t spread(const std::vector<int32_t> & drafted, std::size_t num_target, const float * logits,
                   const TokenList * listed, std::vector<float> & out);

class TokenMap {
public:
    // read [tokens of the target]: what the draft reads in the place of each. drafted [tokens of the draft]: which of
    // the target's each of them drafts; -1: none. Throws std::invalid_argument where one is no token.
    TokenMap(std::vector<int32_t> read, std::vector<int32_t> drafted);

    // What is no token (in its place stands an image, say) stays as it is.
    int32_t read(int32_t token) const { return token < 0 ? token : read_[static_cast<std::size_t>(token)]; }
    // Whether all that can be drafted has one id in both, so that logits can be taken as they are.
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
