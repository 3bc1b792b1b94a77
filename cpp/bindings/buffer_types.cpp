// ggml's own list of buffer types.
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "ggml_plugin/extra_buffer_types.hpp"

namespace py = pybind11;

namespace specllama {

void bind_buffer_types(py::module_ & module) {
    py::class_<ExtraBufferTypes>(module, "ExtraBufferTypes", "The CPU backend's list of extra buffer types.")
        .def(py::init([](std::uintptr_t list, std::uintptr_t offered, std::uintptr_t name, std::uintptr_t device) {
                 return ExtraBufferTypes({list, offered, name, device});
             }),
             py::kw_only(), py::arg("list"), py::arg("offered"), py::arg("name"), py::arg("device"))
        .def_property_readonly("has_list", &ExtraBufferTypes::has_list)
        .def("names", &ExtraBufferTypes::names)
        .def("offered", &ExtraBufferTypes::offered)
        .def("remove", &ExtraBufferTypes::remove, py::arg("name"));
}

}  // namespace specllama
