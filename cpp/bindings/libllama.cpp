// The functions of libllama, and what they are asked.
#include <pybind11/stl.h>

#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"
#include "llama/llama_api.hpp"

namespace py = pybind11;

namespace specllama {

void bind_libllama(py::module_ & module) {
    ResultStruct<FunctionAbout>(module, "Function", "A function of libllama.")
        .field("name", &FunctionAbout::name, "Its name.")
        .field("num_arguments", &FunctionAbout::num_arguments, "How many arguments it takes.");
    ResultStruct<StructField>(module, "StructField", "Where something lies in a struct of libllama.")
        .field("name", &StructField::name, "The field's name; that of the struct itself is empty.")
        .field("offset", &StructField::offset, "In bytes.")
        .field("size", &StructField::size, "In bytes.");
    ResultStruct<StructLayout>(module, "StructLayout", "A struct of libllama, as this extension has it.")
        .field("name", &StructLayout::name, "Its name.")
        .field("fields", &StructLayout::fields, "All its fields, then the struct itself.");
    module.def("required_functions", &LlamaApi::required_functions, "Those that every libllama must have.");
    module.def("optional_functions", &LlamaApi::optional_functions, "Those that it may lack.");
    module.def("struct_layouts", &LlamaApi::struct_layouts, "The structs that are handed over.");
    module.def(
        "bytes_returned",
        [](std::uintptr_t function) {
            const std::vector<std::uint8_t> found = bytes_returned(function);
            return py::bytes(reinterpret_cast<const char *>(found.data()), found.size());
        },
        py::arg("function"), "What a function writes of the struct that it returns.");
    py::class_<LlamaApi, std::shared_ptr<LlamaApi>>(module, "LlamaApi", "libllama's functions.")
        .def(py::init<const std::unordered_map<std::string, std::uintptr_t> &>(), py::arg("addresses"));
}

}  // namespace specllama
