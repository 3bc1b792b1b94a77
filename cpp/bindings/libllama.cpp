// The functions and structs of libllama that this extension uses.
#include <pybind11/stl.h>

#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"
#include "llama/llama_api.hpp"

namespace py = pybind11;

namespace specllama {

void bind_libllama(py::module_ & module) {
    ResultStruct<FunctionAbout>(module, "Function", "A function of libllama.")
        .field("name", &FunctionAbout::name, "The function's name.")
        .field("num_arguments", &FunctionAbout::num_arguments, "Number of arguments.");
    ResultStruct<StructField>(module, "StructField", "The place of a field in a struct of libllama.")
        .field("name", &StructField::name, "The field's name; empty for the whole struct.")
        .field("offset", &StructField::offset, "In bytes.")
        .field("size", &StructField::size, "In bytes.");
    ResultStruct<StructLayout>(module, "StructLayout",
                               "The layout of a libllama struct that this extension was compiled with.")
        .field("name", &StructLayout::name, "The struct's name.")
        .field("fields", &StructLayout::fields, "All fields, then the whole struct.");
    module.def("required_functions", &LlamaApi::required_functions,
               "Returns the functions that every libllama must have.");
    module.def("optional_functions", &LlamaApi::optional_functions, "Returns the functions that a libllama may lack.");
    module.def("struct_layouts", &LlamaApi::struct_layouts,
               "Returns the layouts of the structs that are passed to libllama.");
    module.def(
        "bytes_returned",
        [](std::uintptr_t function) {
            const std::vector<std::uint8_t> found = bytes_returned(function);
            return py::bytes(reinterpret_cast<const char *>(found.data()), found.size());
        },
        py::arg("function"),
        "Returns the bytes that a function without arguments writes into the struct that it returns.");
    py::class_<LlamaApi, std::shared_ptr<LlamaApi>>(module, "LlamaApi",
                                                    "The table of libllama's functions. addresses: by name.")
        .def(py::init<const std::unordered_map<std::string, std::uintptr_t> &>(), py::arg("addresses"));
}

}  // namespace specllama
