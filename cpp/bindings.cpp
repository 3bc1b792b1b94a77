// The Python module specllama._core. Registers everything; the parts are in bind_*.cpp.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "The native loop of specllama. Use specllama.Llama instead.";
    specllama::bind_errors(module);
    specllama::bind_mathematics(module);
    specllama::bind_drafting(module);
    specllama::bind_api(module);
    specllama::bind_masks(module);
    specllama::bind_decoder(module);
    specllama::bind_engine(module);
    specllama::bind_kernels(module);
    specllama::bind_ggml_plugin(module);
}
