// What batches take, as Python sees it.
#pragma once

#include <cstddef>
#include <map>

namespace specllama {

using Curve = std::map<std::size_t, double>;

struct Costs {
    Curve target;
    Curve draft;
};

}  // namespace specllama
