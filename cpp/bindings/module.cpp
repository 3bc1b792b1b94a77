// The Python module specllama._core, and its submodule for tests.
#include "bindings/bindings.hpp"

namespace {

void bind_tests(pybind11::module_ module) {
    specllama::bind_noise_for_tests(module);
    specllama::bind_rules_for_tests(module);
    specllama::bind_constraints_for_tests(module);
    specllama::bind_lookup_for_tests(module);
    specllama::bind_pace_for_tests(module);
    specllama::bind_decoding_for_tests(module);
    specllama::bind_products_for_tests(module);
    specllama::bind_attention_for_tests(module);
    specllama::bind_memory_pages_for_tests(module);
    specllama::bind_ggml_probe_for_tests(module);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "The native loop of specllama. Use specllama.Llama instead.";
    specllama::bind_errors(module);
    specllama::bind_samplers(module);
    specllama::bind_distributions(module);
    specllama::bind_tables(module);
    specllama::bind_counters(module);
    specllama::bind_libllama(module);
    specllama::bind_vocabularies(module);
    specllama::bind_grammars(module);
    specllama::bind_masks(module);
    specllama::bind_decoders(module);
    specllama::bind_scheduler(module);
    specllama::bind_speculator(module);
    specllama::bind_kernels(module);
    specllama::bind_buffer_types(module);
    bind_tests(module.def_submodule("_test", "What the tests compare with its definition. Nothing else uses it."));
}
