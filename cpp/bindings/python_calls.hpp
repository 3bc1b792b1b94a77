// Python functions that are called from a round, which runs without the GIL, and what they raise.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace specllama {

// A Python function that may be let go of by a thread without the GIL.
struct OwnedByPython {
    explicit OwnedByPython(pybind11::object given) : function(std::move(given)) {}
    OwnedByPython(const OwnedByPython &) = delete;
    OwnedByPython & operator=(const OwnedByPython &) = delete;
    ~OwnedByPython() {
        const pybind11::gil_scoped_acquire gil;
        function = pybind11::object();
    }
    pybind11::object function;
};

// Ctrl-C in a drafter and any error in a logits processor end the round, where an error would only end the drafting: no
// std::exception, which is caught.
struct PythonError {
    pybind11::error_already_set error;
};

// Calls without the GIL what a Python function may end.
template <typename Call>
auto without_gil(Call call) {
    try {
        const pybind11::gil_scoped_release release;
        return call();
    } catch (const PythonError & raised) {
        throw raised.error;
    }
}

}  // namespace specllama
