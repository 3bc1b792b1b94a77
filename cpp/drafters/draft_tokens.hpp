// The list of tokens that a draft model chooses among to save logits, and the counts of tokens that the target has
// written, from which a later process makes its list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "math/token_list.hpp"

namespace specllama {

// Several texts share one object.
class DraftTokens {
public:
    explicit DraftTokens(TokenList usual) : usual_(std::move(usual)) {}

    // The tokens listed for every text. Each text adds its own tokens to a copy.
    const TokenList & usual() const { return usual_; }

    // Counts tokens [count] that the target has written.
    void count(const int32_t * tokens, std::size_t count) {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            written_[tokens[i] / static_cast<int32_t>(TokenList::group_size)] += 1;
        }
    }

    // How many tokens of each group were written since the last call.
    std::map<int32_t, std::size_t> take_written() {
        const std::lock_guard lock(mutex_);
        return std::exchange(written_, {});
    }

private:
    TokenList usual_;
    std::mutex mutex_;
    std::map<int32_t, std::size_t> written_;
};

}  // namespace specllama
