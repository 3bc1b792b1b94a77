// The Python module specllama._core_test: parts of the C++ code that the tests compare with their definitions. Wheels
// for users do not have it.
#include "bindings/test/parts.hpp"

PYBIND11_MODULE(_core_test, module) {
    module.doc() =
        "Parts of the C++ code that the tests compare with their definitions. Nothing else uses this module.";
    pybind11::module_::import("specllama._core");  // the tests' module uses its types
    specllama::bind_noise_for_tests(module);
    specllama::bind_rules_for_tests(module);
    specllama::bind_constraints_for_tests(module);
    specllama::bind_lookup_for_tests(module);
    specllama::bind_pace_for_tests(module);
    specllama::bind_decoding_for_tests(module);
    specllama::bind_token_lists_for_tests(module);
    specllama::bind_translation_for_tests(module);
    specllama::bind_products_for_tests(module);
    specllama::bind_attention_for_tests(module);
    specllama::bind_recurrent_for_tests(module);
    specllama::bind_memory_pages_for_tests(module);
    specllama::bind_ggml_probe_for_tests(module);
}
