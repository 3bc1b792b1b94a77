// The kernels: what this processor can do, and their place in llama.cpp.
#include <pybind11/stl.h>

#include <algorithm>
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

using Addresses = std::unordered_map<std::string, std::uintptr_t>;

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
    return names;
}

std::vector<std::string> optional_ggml_functions() {
    std::vector<std::string> names;
    SPECLLAMA_OPTIONAL_GGML_FUNCTIONS(SPECLLAMA_NAME)
#undef SPECLLAMA_NAME
    return names;
}

}  // namespace

void bind_kernels(py::module_ & module) {
    module.def("instruction_sets", &instruction_sets,
               "Returns the names of the kernels' instruction sets that this processor has, the fastest first.");
    ResultStruct<kernels::Layout>(module, "QuantizedType", "A type of weights that the kernels multiply.")
        .field("num_values", &kernels::Layout::values, "Number of values in a block.")
        .field("num_bytes", &kernels::Layout::block_bytes, "Size of a block in bytes.")
        .field("number", &kernels::Layout::number, "The type's number in GGUF files.");
    module.def("quantized_types", &quantized_types, "Returns the types that the kernels multiply, by name.");
    module.def("ggml_functions", &ggml_functions,
               "Returns the names of the ggml functions that KernelBufferType needs.");
    module.def("optional_ggml_functions", &optional_ggml_functions,
               "Returns the names of those that it asks for, which not every release has.");

    py::class_<KernelBufferType, std::unique_ptr<KernelBufferType, py::nodelete>>(
        module, "KernelBufferType",
        "Has weights be packed for the kernels while llama.cpp loads them. A process has at most one.")
        .def(py::init([](const Addresses & addresses, std::uintptr_t registry, const Addresses & types,
                         const std::string & set, bool updates_states) {
                 // The object is never destroyed, because models that are freed when the process ends still refer to
                 // it.
                 return std::unique_ptr<KernelBufferType, py::nodelete>(
                     new KernelBufferType(addresses, registry, types, set_named(set), updates_states));
             }),
             py::arg("addresses"), py::arg("registry"), py::arg("types"), py::arg("instruction_set"),
             py::arg("updates_states"))
        .def("take_place", &KernelBufferType::take_place,
             "Takes the place of ggml's CPU_REPACK, for models that are loaded later. Once in a process.")
        .def_property_readonly(
            "address", [](KernelBufferType & self) { return reinterpret_cast<std::uintptr_t>(self.type()); },
            "The address of CPU_REPACK.")
        .def_property_readonly("instruction_set",
                               [](const KernelBufferType & self) { return std::string(self.instruction_set().name); })
        .def_property_readonly("types", &KernelBufferType::types,
                               "The names of the types of weights that the kernels multiply and this ggml knows.")
        .def_static(
            "take_weights",
            [](const std::vector<std::string> & types) {
                std::vector<kernels::QuantizedType> taken;
                for (int i = 0; i < kernels::kNumTypes; ++i) {
                    if (std::find(types.begin(), types.end(), kernels::kTypeNames[i]) != types.end()) {
                        taken.push_back(static_cast<kernels::QuantizedType>(i));
                    }
                }
                PackedBuffers::take_weights(taken);
            },
            py::arg("types"),
            "Sets which types of weights are packed, by name, of models that this thread loads later. At first none is.")
        .def_static("bytes_loaded", &PackedBuffers::bytes_loaded,
                    "Returns the bytes of packed weights that this thread has loaded since it began.");
    module.def(
        "give_no_weights",
        [](const Addresses & addresses, std::uintptr_t registry, std::uintptr_t type) {
            const ggml::Api api(addresses);
            (new NoWeights(api))
                ->take_place_of(reinterpret_cast<ggml::BufferType *>(type),
                                ggml::probe(api, reinterpret_cast<const void *>(registry)));
        },
        py::arg("addresses"), py::arg("registry"), py::arg("type"),
        "Has one of ggml's extra buffer types get no more weights. Those that it has are multiplied as before.");
}

}  // namespace specllama
