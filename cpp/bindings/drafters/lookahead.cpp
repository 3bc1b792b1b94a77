// Drafts n-grams that the target has generated in a window beside the text (lookahead decoding).
#include "drafters/lookahead.hpp"

#include <pybind11/stl.h>

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_lookahead_drafter(py::module_ & module, DrafterClass & drafter) {
    py::class_<LookaheadWindow, std::shared_ptr<LookaheadWindow>>(
        module, "LookaheadWindow", "The window and the pool of n-grams of lookahead decoding.")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::kw_only(), py::arg("window"), py::arg("n_gram"),
             py::arg("guesses"))
        .def_property_readonly("levels", &LookaheadWindow::levels, "The window [n_gram - 1][window].")
        .def("pool", &LookaheadWindow::pool, py::arg("first"),
             "Returns the n-grams that begin with `first`, without this token, the oldest first.");
    drafter.def_static("lookahead", &make_lookahead, py::arg("window"));
}

}  // namespace specllama
