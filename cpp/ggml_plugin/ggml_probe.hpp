// Finds out how the loaded ggml is laid out, as far as our kernels depend on it, before our code changes anything in
// ggml.
#pragma once

#include <optional>
#include <unordered_map>

#include "ggml/ggml_api.hpp"
#include "kernels/quantized_type.hpp"

namespace specllama::ggml {

struct Insides {
    BufferTypeLayout buffer_type = {};
    int num_buffer_functions = 0;
    int mul_mat = -1;  // the numbers of these operations
    int mul_mat_id = -1;
    int flash_attention = -1;
    std::unordered_map<int, kernels::QuantizedType> types;  // the kernels' types, by their numbers in ggml

    // The type of weights [columns, rows], or [columns, rows, experts]; nothing if the kernels cannot multiply them.
    std::optional<kernels::QuantizedType> type_of(const Tensor * tensor) const;
};

// registry: ggml's registry of its CPU backend.
// Throws std::runtime_error, which says what differs, if the library is not laid out as ggml_layout.hpp says.
Insides probe(const Api & api, const void * registry);

// Whether llama.cpp asks about an operation to find a buffer type for weights that it is going to load: these are in an
// empty buffer then.
bool is_loading(const Api & api, const Tensor * op);

}  // namespace specllama::ggml
