// Maps a draft's tokens to its target's.
#include "translation/token_map.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace specllama {

TokenMap::TokenMap(std::vector<int32_t> read, std::vector<int32_t> drafted)
    : read_(std::move(read)), drafted_(std::move(drafted)) {
    const auto none_in = [](const std::vector<int32_t> & tokens, int32_t least, std::size_t count) {
        return std::any_of(tokens.begin(), tokens.end(), [least, count](int32_t token) {
            return token < least || (token >= 0 && static_cast<std::size_t>(token) >= count);
        });
    };
    if (none_in(read_, 0, drafted_.size()) || none_in(drafted_, -1, read_.size())) {
        throw std::invalid_argument("a token of a map is in neither vocabulary");
    }
    for (std::size_t i = 0; i < std::min(read_.size(), drafted_.size()); ++i) {
        keeps_ids_ = keeps_ids_ && drafted_[i] == static_cast<int32_t>(i);
    }
    for (std::size_t i = read_.size(); i < drafted_.size(); ++i) {
        keeps_ids_ = keeps_ids_ && drafted_[i] < 0;
    }
}

std::size_t spread(const std::vector<int32_t> & drafted, std::size_t num_target, const float * logits,
                   const TokenList * listed, std::vector<float> & out) {
    out.assign(num_target, -std::numeric_limits<float>::infinity());
    std::size_t count = 0;
    const auto put = [&](std::size_t first, std::size_t end) {
        for (std::size_t i = first; i < std::min(end, drafted.size()); ++i) {
            if (drafted[i] >= 0) {
                out[static_cast<std::size_t>(drafted[i])] = logits[i];
                ++count;
            }
        }
    };
    if (listed == nullptr) {
        put(0, drafted.size());
        return count;
    }
    for (const int32_t group : listed->groups()) {
        const std::size_t first = static_cast<std::size_t>(group) * TokenList::group_size;
        put(first, first + TokenList::group_size);
    }
    return count;
}

}  // namespace specllama
