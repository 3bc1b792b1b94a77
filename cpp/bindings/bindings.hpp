// The parts of the Python module, each in a file of its own. Only the files of this folder include pybind11.
#pragma once

#include <pybind11/pybind11.h>

namespace specllama {

// Parts that need no llama.cpp.
void bind_errors(pybind11::module_ & module);         // exception types
void bind_blocks(pybind11::module_ & module);         // blocks of Python code that one thread at a time may enter
void bind_samplers(pybind11::module_ & module);       // the sampler chain's parameters
void bind_distributions(pybind11::module_ & module);  // the distributions that the sampler chain makes
void bind_tables(pybind11::module_ & module);         // which rules and drafters there are
void bind_counters(pybind11::module_ & module);       // what is counted during a generation

// Parts that need llama.cpp.
void bind_libllama(pybind11::module_ & module);      // llama.cpp's functions
void bind_logs(pybind11::module_ & module);          // llama.cpp's log messages
void bind_vocabularies(pybind11::module_ & module);  // tokenizers, translations, sequence breakers
void bind_masks(pybind11::module_ & module);         // constraints: Python says which tokens are allowed
void bind_decoders(pybind11::module_ & module);      // decoders and their sequences
void bind_scheduler(pybind11::module_ & module);     // many texts at once
void bind_speculator(pybind11::module_ & module);    // the loop

// Parts that need ggml.
void bind_kernels(pybind11::module_ & module);  // the kernels, and their place in llama.cpp

}  // namespace specllama
