// The hints to the system about the pages that weights are in.
#include "ggml_plugin/memory_pages.hpp"

#include "bindings/test/parts.hpp"

namespace py = pybind11;

namespace specllama {

void bind_memory_pages_for_tests(py::module_ & module) {
    module.def(
        "let_go_of_file",
        [](std::uintptr_t address, std::size_t size) { let_go_of_file(reinterpret_cast<const void *>(address), size); },
        py::arg("address"), py::arg("size"));
    module.def(
        "prefer_large_pages",
        [](std::uintptr_t address, std::size_t size) { prefer_large_pages(reinterpret_cast<void *>(address), size); },
        py::arg("address"), py::arg("size"));
}

}  // namespace specllama
