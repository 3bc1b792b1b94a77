// Drafts the tokens that followed an earlier occurrence of the end of the text.
#include "drafters/lookup.hpp"

#include <pybind11/stl.h>
#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_lookup_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static(
        "lookup",
        [](const std::optional<Tokens> & corpus) {
            return made<LookupDrafter>(corpus ? to_vector(*corpus) : std::vector<int32_t>());
        },
        py::arg("corpus") = py::none(), "corpus: tokens to search besides the text.");
}

}  // namespace specllama
