// Drafts with a head that draws one token in a decode.
#include "drafters/head.hpp"

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_head_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static("head", &made<HeadDrafter, std::shared_ptr<Sequence>, std::size_t>, py::arg("sequence"),
                       py::arg("window") = 0, "window: the most tokens of the text that it holds; 0: no limit.");
}

}  // namespace specllama
