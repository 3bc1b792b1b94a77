// Exception types.
#include "llama/errors.hpp"

#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace specllama {

void bind_errors(py::module_ & module) {
    py::register_exception<AbiError>(module, "AbiError", PyExc_ImportError);
    const auto decode_error = py::register_exception<DecodeError>(module, "DecodeError", PyExc_RuntimeError);
    // ContextFullError comes after its base class: pybind11 asks the translator that was registered last first.
    py::register_exception<ContextFullError>(module, "ContextFullError", decode_error);
    py::register_exception<BusyError>(module, "BusyError", PyExc_RuntimeError);
    py::register_exception<ClosedError>(module, "ClosedError", PyExc_RuntimeError);
}

}  // namespace specllama
