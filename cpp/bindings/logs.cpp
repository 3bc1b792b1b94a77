// Passes llama.cpp's log messages to a Python function.
#include <cstdint>
#include <utility>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// The arguments of listen(). They are never freed, because llama.cpp may log after Python has ended.
PyObject * hear = nullptr;
PyObject * fail = nullptr;

void hand_on(int level, const char * text) {
    try {
        called(py::reinterpret_borrow<py::object>(hear), level, py::bytes(text));
    } catch (const py::error_already_set & error) {
        called(py::reinterpret_borrow<py::object>(fail), error.value());
    }
}

// A ggml_log_callback. It may be called in any thread, with the GIL or without.
void on_message(int level, const char * text, void * /*user_data*/) {
    if (python_ends()) {
        return;
    }
    const GilHeld gil;
    try {
        hand_on(level, text);
    } catch (py::error_already_set & error) {
        error.discard_as_unraisable("a message of llama.cpp");
    }
}

std::uintptr_t listen(py::object heard_by, py::object failed_by) {
    Py_XDECREF(std::exchange(hear, heard_by.release().ptr()));
    Py_XDECREF(std::exchange(fail, failed_by.release().ptr()));
    return reinterpret_cast<std::uintptr_t>(&on_message);
}

}  // namespace

void bind_logs(py::module_ & module) {
    module.def("listen", &listen, py::arg("hear"), py::arg("fail"),
               "Returns the address of a log callback, which calls hear(level, text), and fail(error) if hear raises.");
}

}  // namespace specllama
