// What two texts have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specllama {

// How many tokens they begin with.
inline std::size_t num_common(const std::vector<int32_t> & one, const std::vector<int32_t> & other) {
    const auto end = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    return static_cast<std::size_t>(end - one.begin());
}

}  // namespace specllama
