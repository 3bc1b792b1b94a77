// Drafts the tokens that a grammar forces.
#include "drafters/grammar.hpp"

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_grammar_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static("grammar", &made<GrammarDrafter>);
}

}  // namespace specllama
