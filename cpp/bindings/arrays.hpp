// Arrays, addresses and costs, in the form in which all bindings take and return them.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "math/token_list.hpp"

namespace specllama {

using Tokens = pybind11::array_t<int32_t, pybind11::array::c_style | pybind11::array::forcecast>;

inline std::vector<int32_t> to_vector(const Tokens & tokens) { return {tokens.data(), tokens.data() + tokens.size()}; }

inline Tokens to_array(const std::vector<int32_t> & tokens) {
    return Tokens(static_cast<pybind11::ssize_t>(tokens.size()), tokens.data());
}

inline TokenList make_list(std::size_t n_vocab, const Tokens & tokens) {
    TokenList list(n_vocab);
    for (const int32_t token : to_vector(tokens)) {
        list.add(token);
    }
    return list;
}

// A Curve maps the number of tokens in a batch to the seconds that the batch takes. Costs are the target's curve, then
// the curve of each draft that decodes.
using Curve = std::map<std::size_t, double>;
using Costs = std::vector<Curve>;

template <typename Pointer>
Pointer * at_address(std::uintptr_t address) {
    return reinterpret_cast<Pointer *>(address);
}

}  // namespace specllama
