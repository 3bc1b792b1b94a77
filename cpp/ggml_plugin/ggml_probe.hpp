// What the loaded ggml is like inside, as far as our kernels depend on it: found by asking it, before anything is
// changed.
#pragma once

#include <optional>
#include <unordered_map>

#include "ggml/ggml_api.hpp"
#include "kernels/quantized_type.hpp"

namespace specllama::ggml {

struct Insides {
    BufferTypeLayout buffer_type = {};
    int num_buffer_functions = 0;
    int find_function = -1;  // where a backend's registry has the function that finds others by name, in pointers
    int mul_mat = -1;        // numbers of operations
    int mul_mat_id = -1;
    int flash_attention = -1;
    std::unordered_map<int, kernels::QuantizedType> types;  // by their numbers in ggml

    // The type of weights [columns, rows], or [columns, rows, experts]; nothing if the kernels do not multiply such.
    std::optional<kernels::QuantizedType> type_of(const Tensor * tensor) const;
};

// registry: ggml's of its CPU backend.
// Throws std::runtime_error, which says what differs, if the library is laid out otherwise than is known here.
Insides probe(const Api & api, const void * registry);

}  // namespace specllama::ggml
