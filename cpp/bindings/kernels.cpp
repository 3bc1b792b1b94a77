// The kernels: what this processor can do, and the buffer type that llama.cpp is offered.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/instruction_sets.hpp"
#include "bindings/result_struct.hpp"
#include "ggml_plugin/kernel_buffer_type.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

std::vector<std::string> instruction_sets() {
    const kernels::InstructionSet * sets[kernels::kMostSets];
    const int count = kernels::usable_sets(sets);
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        names.emplace_back(sets[i]->name);
    }
    return names;
}

// The layouts of the quantized types, by name.
std::map<std::string, kernels::Layout> quantized_types() {
    std::map<std::string, kernels::Layout> types;
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        types[kernels::kTypeNames[i]] = kernels::layout_of(static_cast<kernels::QuantizedType>(i));
    }
    return types;
}

std::vector<std::string> ggml_functions() {
    std::vector<std::string> names;
#define SPECLLAMA_NAME(name, signature) names.emplace_back(#name);
    SPECLLAMA_GGML_FUNCTIONS(SPECLLAMA_NAME)
#undef SPECLLAMA_NAME
    return names;
}

}  // namespace

void bind_kernels(py::module_ & module) {
    module.def("instruction_sets", &instruction_sets,
               "The kernels' instruction sets that this processor has, the fastest first.");
    ResultStruct<kernels::Layout>(module, "QuantizedType", "A type of weights that the kernels multiply.")
        .field("num_values", &kernels::Layout::values, "Values of a block.")
        .field("num_bytes", &kernels::Layout::block_bytes, "Bytes of a block.")
        .field("number", &kernels::Layout::number, "The type's number in GGUF files.");
    module.def("quantized_types", &quantized_types, "The types that the kernels multiply, by their names.");
    module.def("ggml_functions", &ggml_functions, "Names of the functions of ggml that KernelBufferType needs.");

    py::class_<KernelBufferType, std::unique_ptr<KernelBufferType, py::nodelete>>(
        module, "KernelBufferType",
        "Weights that are packed for the kernels while llama.cpp loads them. There is one in a process, for good.")
        .def(py::init([](const std::unordered_map<std::string, std::uintptr_t> & addresses, std::uintptr_t registry,
                         const std::string & set) {
                 // The object is never destroyed, because models that are freed when the process ends still refer to
                 // it.
                 return std::unique_ptr<KernelBufferType, py::nodelete>(
                     new KernelBufferType(addresses, registry, set_named(set)));
             }),
             py::arg("addresses"), py::arg("registry"), py::arg("instruction_set"))
        .def("offer", &KernelBufferType::offer, py::arg("own"), py::arg("offered"),
             "Put it before the other buffer types, for models that are loaded from now on. Once in a process.")
        .def_property_readonly(
            "address", [](KernelBufferType & self) { return reinterpret_cast<std::uintptr_t>(self.type()); },
            "That of ggml's structure.")
        .def_property_readonly("instruction_set",
                               [](const KernelBufferType & self) { return std::string(self.instruction_set().name); })
        .def_static("take_weights", &KernelBufferType::take_weights, py::arg("take"),
                    "Whether models that this thread loads from now on have their weights packed. At first none has.")
        .def_static("bytes_loaded", &PackedBuffers::bytes_loaded,
                    "Bytes of the packed weights that this thread has loaded since it began.");
}

}  // namespace specllama
