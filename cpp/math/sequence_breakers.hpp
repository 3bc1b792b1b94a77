// Sequence breakers: token sequences at which DRY stops looking for a repetition. Knows neither llama.cpp nor Python.
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

    // Sets all breakers that begin with `first`: each consists of `first` and one of `rests`. A rest may be empty.
    void put(int32_t first, std::shared_ptr<const Rests> rests) { rests_[first] = std::move(rests); }

    // The number of tokens after the last breaker of a text; the number of all tokens if the text has no breaker.
    // backwards: the text, the last token first. Where several breakers begin at one token, the longest counts.
    std::size_t num_behind(const std::vector<int32_t> & backwards) const;

    bool breaks_alone(int32_t token) const;

private:
    std::unordered_map<int32_t, std::shared_ptr<const Rests>> rests_;  // by the breakers' first token
};

}  // namespace specllama
