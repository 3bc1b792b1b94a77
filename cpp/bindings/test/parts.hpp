// The parts of the tests' Python module, a file each.
#pragma once

#include <pybind11/pybind11.h>

namespace specllama {

void bind_noise_for_tests(pybind11::module_ & module);         // random numbers, and what is drawn with them
void bind_rules_for_tests(pybind11::module_ & module);         // the acceptance rules
void bind_constraints_for_tests(pybind11::module_ & module);   // constraints and sequence breakers
void bind_lookup_for_tests(pybind11::module_ & module);        // the suffix index
void bind_pace_for_tests(pybind11::module_ & module);          // the pace
void bind_decoding_for_tests(pybind11::module_ & module);      // several sequences in one batch
void bind_token_lists_for_tests(pybind11::module_ & module);   // lists of tokens
void bind_translation_for_tests(pybind11::module_ & module);   // texts as drafts of other tokenizers read them
void bind_products_for_tests(pybind11::module_ & module);      // products of quantized weights
void bind_attention_for_tests(pybind11::module_ & module);     // the kernels of attention
void bind_memory_pages_for_tests(pybind11::module_ & module);  // what the system is told about pages
void bind_ggml_probe_for_tests(pybind11::module_ & module);    // what is found out about ggml

}  // namespace specllama
