// Token sequences after which a repetition counts anew. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace specllama {

class SequenceBreakers {
public:
    using Rests = std::vector<std::vector<int32_t>>;

    // `first`, followed by `rest` (nothing: it breaks alone). Adding one twice changes nothing.
    void add(int32_t first, std::vector<int32_t> rest);

    // `first`, followed by any of these. Replaces what was known of it.
    void put(int32_t first, std::shared_ptr<const Rests> rests) { rests_[first] = std::move(rests); }

    // How many tokens there are after the last breaker of a text, given backwards; all of them if it has none.
    // Where several begin with one token, the longest counts.
    std::size_t num_behind(const std::vector<int32_t> & backwards) const;

    bool breaks_alone(int32_t token) const;

private:
    std::unordered_map<int32_t, std::shared_ptr<const Rests>> rests_;  // by the first token
};

}  // namespace specllama
