// The tokens that a draft model chooses among where it need not choose among all, and which ones the target has
// written, of which a later process makes its list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "math/token_list.hpp"

namespace specllama {

// Several texts share one.
class DraftTokens {
public:
    explicit DraftTokens(TokenList usual) : usual_(std::move(usual)) {}

    // Those of every text. Each has its own tokens besides.
    const TokenList & usual() const { return usual_; }

    // The target has written these [count].
    void count(const int32_t * tokens, std::size_t count) {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            written_[tokens[i] / static_cast<int32_t>(TokenList::group_size)] += 1;
        }
    }

    // How many tokens of which group were written since the last call.
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
