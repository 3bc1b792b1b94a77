// The parts of the Python module. Only bindings.cpp and bind_*.cpp include pybind11.
#pragma once

#include <pybind11/pybind11.h>

namespace specllama {

void bind_errors(pybind11::module_ & module);       // exception types
void bind_mathematics(pybind11::module_ & module);  // distributions, noise, rules: no llama.cpp
void bind_drafting(pybind11::module_ & module);     // what drafters are made of: no llama.cpp
void bind_api(pybind11::module_ & module);          // libllama's functions, vocabularies, grammars
void bind_masks(pybind11::module_ & module);        // a constraint whose masks Python makes
void bind_decoder(pybind11::module_ & module);      // decoders and their sequences
void bind_engine(pybind11::module_ & module);       // the loop
void bind_kernels(pybind11::module_ & module);      // matrix products of our own, and what offers them to llama.cpp
void bind_ggml_plugin(pybind11::module_ & module);  // what changes ggml itself

}  // namespace specllama
