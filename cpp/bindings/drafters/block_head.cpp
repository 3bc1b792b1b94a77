// Drafts with a head that draws several tokens in one decode.
#include "drafters/block_head.hpp"

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_block_head_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static("block_head", &made<BlockHeadDrafter, std::shared_ptr<Sequence>, std::size_t>,
                       py::arg("sequence"), py::arg("window") = 0,
                       "window: the most tokens of the text that it holds; 0: no limit.");
}

}  // namespace specllama
