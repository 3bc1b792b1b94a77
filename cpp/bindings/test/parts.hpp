// The parts of the tests' Python module, each in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace specllama {

void bind_noise_for_tests(pybind11::module_ & module);         // random numbers, and tokens that are drawn with them
void bind_rules_for_tests(pybind11::module_ & module);         // the acceptance rules
void bind_constraints_for_tests(pybind11::module_ & module);   // constraints and sequence breakers
void bind_lookup_for_tests(pybind11::module_ & module);        // the suffix index
void bind_pace_for_tests(pybind11::module_ & module);          // the pace
void bind_decoding_for_tests(pybind11::module_ & module);      // several sequences in one batch
void bind_token_lists_for_tests(pybind11::module_ & module);   // lists of tokens
void bind_translation_for_tests(pybind11::module_ & module);   // how drafts of other tokenizers read texts
void bind_products_for_tests(pybind11::module_ & module);      // products of quantized weights
void bind_attention_for_tests(pybind11::module_ & module);     // the kernels of attention
void bind_recurrent_for_tests(pybind11::module_ & module);     // the kernels of attention
void bind_memory_pages_for_tests(pybind11::module_ & module);  // hints to the system about pages
void bind_ggml_probe_for_tests(pybind11::module_ & module);    // what ggml_probe finds

}  // namespace specllama
