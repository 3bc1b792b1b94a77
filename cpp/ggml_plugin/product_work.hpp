// Helpers for the working memory and the panels that the threads of a product share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace specllama {

constexpr std::size_t kLine = 64;  // bytes of a cache line

inline std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// The working memory that ggml gives all threads together, from its first whole cache line on.
inline uint8_t * first_line(void * work) {
    return reinterpret_cast<uint8_t *>(whole_lines(reinterpret_cast<std::uintptr_t>(work)));
}

// How many panels a thread takes at a time: few enough that no thread waits long for another, and enough to use a tile
// several times.
inline int64_t panels_at_a_time(int64_t num_panels, int num_threads) {
    return std::clamp<int64_t>(num_panels / (int64_t{16} * num_threads), 1, 8);
}

}  // namespace specllama
