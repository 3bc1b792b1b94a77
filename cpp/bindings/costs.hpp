// What batches take, as Python sees it.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace specllama {

using Curve = std::map<std::size_t, double>;

// Of the target, then of each draft that decodes.
using Costs = std::vector<Curve>;

}  // namespace specllama
