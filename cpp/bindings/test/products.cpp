// Products of the kernels, which tests compare with their definition.
#include <pybind11/numpy.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/instruction_sets.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/test/parts.hpp"
#include "kernels/block.hpp"
#include "kernels/matrix_product.hpp"
#include "kernels/pack.hpp"

namespace py = pybind11;

namespace specllama {

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

// Checks that weights, as a file holds them, have the shape [rows, bytes of a row of `columns` values].
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
    const GilReleased released;
    std::vector<uint8_t> panels(kernels::packed_bytes(type, weights.shape(0), x.shape(1)));
    kernels::pack(type, weights.data(), weights.shape(0), x.shape(1), 0, kernels::num_panels(weights.shape(0)),
                  panels.data());
    kernels::multiply_packed(set, type, panels.data(), weights.shape(0), x.data(), x.shape(0), x.shape(1),
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

}  // namespace

void bind_products_for_tests(py::module_ & module) {
    module.def("multiply_quantized", &multiply_quantized, py::arg("weights"), py::arg("type"), py::arg("x"),
               py::arg("instruction_set"),
               "The product of quantized rows with columns, as the kernels compute it: [columns, rows].");
    module.def("dequantize_rows", &dequantize_rows, py::arg("weights"), py::arg("type"),
               "Returns the weights in double precision: [rows, values].");
}

}  // namespace specllama
