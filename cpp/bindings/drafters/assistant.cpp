// Drafts with a head that reads the target's memory.
#include "drafters/assistant.hpp"

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_assistant_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static("assistant", &made<AssistantDrafter, std::shared_ptr<Sequence>>, py::arg("sequence"),
                       "sequence: of a decoder that reads its target's memory.");
}

}  // namespace specllama
