// The kernels: what this processor can do, products for tests, and the buffer type that llama.cpp is offered.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bindings.hpp"
#include "ggml_plugin/kernel_buffer_type.hpp"
#include "kernels/block.hpp"
#include "kernels/matrix_product.hpp"

namespace py = pybind11;

namespace specllama {

const kernels::InstructionSet & set_named(const std::string & name) {
    const kernels::InstructionSet * sets[kernels::kMostSets];
    const int count = kernels::usable_sets(sets);
    for (int i = 0; i < count; ++i) {
        if (name == sets[i]->name) {
            return *sets[i];
        }
    }
    throw std::invalid_argument("this processor, or this build, has no kernels for " + name);
}

namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using Columns = py::array_t<float, py::array::c_style | py::array::forcecast>;

kernels::QuantizedType type_named(const std::string & name) {
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        if (name == kernels::kTypeNames[i]) {
            return static_cast<kernels::QuantizedType>(i);
        }
    }
    throw std::invalid_argument("there are no kernels for the type " + name);
}

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

// type -> values and bytes of a block, and its number in GGUF files.
std::unordered_map<std::string, std::tuple<int, int, int>> quantized_types() {
    std::unordered_map<std::string, std::tuple<int, int, int>> types;
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        const kernels::Layout layout = kernels::layout_of(static_cast<kernels::QuantizedType>(i));
        types[kernels::kTypeNames[i]] = {layout.values, layout.block_bytes, layout.number};
    }
    return types;
}

// What a file's bytes are as rows: shape [rows, bytes of a row].
void check_shape(const Bytes & weights, kernels::QuantizedType type, py::ssize_t columns) {
    const kernels::Layout layout = kernels::layout_of(type);
    if (weights.ndim() != 2 || !kernels::fits(type, columns) ||
        weights.shape(1) != columns / layout.values * layout.block_bytes) {
        throw std::invalid_argument("the weights must be bytes [rows, bytes of a row], of whole blocks");
    }
}

Columns multiply_quantized(const Bytes & weights, const std::string & type_name, const Columns & x,
                           const std::string & set_name) {
    const kernels::QuantizedType type = type_named(type_name);
    const kernels::InstructionSet & set = set_named(set_name);
    if (x.ndim() != 2) {
        throw std::invalid_argument("x must be [columns, values]");
    }
    check_shape(weights, type, x.shape(1));
    Columns out({x.shape(0), weights.shape(0)});
    py::gil_scoped_release release;
    kernels::multiply_matrix(set, type, weights.data(), weights.shape(0), x.data(), x.shape(0), x.shape(1),
                             out.mutable_data());
    return out;
}

py::array_t<double> dequantize_rows(const Bytes & weights, const std::string & type_name) {
    const kernels::QuantizedType type = type_named(type_name);
    const kernels::Layout layout = kernels::layout_of(type);
    const py::ssize_t num_blocks = weights.ndim() == 2 ? weights.shape(1) / layout.block_bytes : 0;
    check_shape(weights, type, num_blocks * layout.values);
    py::array_t<double> values({weights.shape(0), num_blocks * layout.values});
    kernels::Block block;
    for (py::ssize_t i = 0; i < weights.shape(0) * num_blocks; ++i) {
        kernels::take_apart(type, weights.data() + i * layout.block_bytes, block);
        kernels::dequantize(type, block, values.mutable_data() + i * layout.values);
    }
    return values;
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
    module.def(
        "quantized_types", &quantized_types,
        "The types that the kernels multiply: their names, values and bytes of a block, and their numbers in GGUF files.");
    module.def("multiply_quantized", &multiply_quantized, py::arg("weights"), py::arg("type"), py::arg("x"),
               py::arg("instruction_set"),
               "The product of quantized rows with columns, as the kernels compute it: [columns, rows].");
    module.def("dequantize_rows", &dequantize_rows, py::arg("weights"), py::arg("type"),
               "The weights in double precision: [rows, values].");
    module.def("ggml_functions", &ggml_functions, "Names of the functions of ggml that KernelBufferType needs.");

    py::class_<KernelBufferType, std::unique_ptr<KernelBufferType, py::nodelete>>(
        module, "KernelBufferType",
        "Weights that are packed for the kernels while llama.cpp loads them. There is one in a process, for good.")
        .def(
            py::init([](const std::unordered_map<std::string, std::uintptr_t> & addresses, const std::string & set) {
                // Models that are freed when the process ends still refer to it, so it is never destroyed.
                return std::unique_ptr<KernelBufferType, py::nodelete>(new KernelBufferType(addresses, set_named(set)));
            }),
            py::arg("addresses"), py::arg("instruction_set"))
        .def("offer", &KernelBufferType::offer, py::arg("list"),
             "Put it before the other buffer types, for models that are loaded from now on.")
        .def_property_readonly(
            "address", [](KernelBufferType & self) { return reinterpret_cast<std::uintptr_t>(self.type()); },
            "That of ggml's structure.")
        .def_property_readonly("instruction_set",
                               [](const KernelBufferType & self) { return std::string(self.instruction_set().name); })
        .def_static("take_weights", &KernelBufferType::take_weights, py::arg("take"),
                    "Whether models that this thread loads from now on have their weights packed. At first none has.")
        .def_static("bytes_loaded", &KernelBufferType::bytes_loaded,
                    "Bytes of the packed weights that this thread has loaded since it began.");
}

}  // namespace specllama
