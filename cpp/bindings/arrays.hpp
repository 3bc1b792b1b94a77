// Arrays and addresses, as all bindings take them.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <vector>

namespace specllama {

using Tokens = pybind11::array_t<int32_t, pybind11::array::c_style | pybind11::array::forcecast>;

inline std::vector<int32_t> to_vector(const Tokens & tokens) { return {tokens.data(), tokens.data() + tokens.size()}; }

inline Tokens to_array(const std::vector<int32_t> & tokens) {
    return Tokens(static_cast<pybind11::ssize_t>(tokens.size()), tokens.data());
}

template <typename Pointer>
Pointer * at_address(std::uintptr_t address) {
    return reinterpret_cast<Pointer *>(address);
}

}  // namespace specllama
