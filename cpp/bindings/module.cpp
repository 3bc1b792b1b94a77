// The Python module specllama._core.
#include "bindings/bindings.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "The native loop of specllama. Use specllama.Llama instead.";
    specllama::bind_errors(module);
    specllama::bind_blocks(module);
    specllama::bind_samplers(module);
    specllama::bind_distributions(module);
    specllama::bind_tables(module);
    specllama::bind_counters(module);
    specllama::bind_libllama(module);
    specllama::bind_logs(module);
    specllama::bind_vocabularies(module);
    specllama::bind_masks(module);
    specllama::bind_decoders(module);
    specllama::bind_scheduler(module);
    specllama::bind_speculator(module);
    specllama::bind_kernels(module);
}
