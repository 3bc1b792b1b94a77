// Shows what ggml_probe finds out about ggml.
#include "ggml_plugin/ggml_probe.hpp"

#include <pybind11/stl.h>

#include "bindings/test/parts.hpp"

namespace py = pybind11;

namespace specllama {

void bind_ggml_probe_for_tests(py::module_ & module) {
    module.def(
        "probe_ggml",
        [](const std::unordered_map<std::string, std::uintptr_t> & addresses, std::uintptr_t registry) {
            ggml::probe(ggml::Api(addresses), reinterpret_cast<const void *>(registry));
        },
        py::arg("addresses"), py::arg("registry"));
}

}  // namespace specllama
