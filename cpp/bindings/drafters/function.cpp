// Drafts the tokens that a function of the user returns.
#include "drafters/function.hpp"

#include "bindings/callbacks.hpp"
#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_function_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static(
        "function", [](const py::object & function) { return made<FunctionDrafter>(drafting_function(function)); },
        py::arg("function"));
}

}  // namespace specllama
