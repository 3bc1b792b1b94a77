// Adds our buffer type to ggml's buffer types, at any time: other threads may be loading models and computing
// meanwhile.
#pragma once

#include <cstdint>

#include "ggml/ggml_api.hpp"
#include "ggml_plugin/ggml_probe.hpp"

namespace specllama {

// Where ggml says which buffer types there are.
struct BufferTypeLists {
    std::uintptr_t registry = 0;  // ggml's registry of its CPU backend
    std::uintptr_t used = 0;      // ggml_backend_cpu_get_extra_buffer_types(): types that compute operations
    std::uintptr_t offered = 0;   // ggml_backend_dev_get_extra_bufts(device): types for a model's weights
};

// Offers a buffer type to all models that are loaded from now on, before the other buffer types. May be called once in
// a process.
void offer(const ggml::Insides & insides, const BufferTypeLists & lists, ggml::BufferType * type);

}  // namespace specllama
