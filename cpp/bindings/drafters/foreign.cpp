// Drafts with a smaller model of another tokenizer.
#include "drafters/foreign.hpp"

#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

void bind_foreign_drafter(py::module_ &, DrafterClass & drafter) {
    drafter.def_static(
        "foreign",
        [](std::shared_ptr<Sequence> sequence, std::shared_ptr<Translation> translation, std::size_t window,
           std::shared_ptr<DraftTokens> tokens) {
            return make_foreign(ModelParts{std::move(sequence), window, std::move(tokens)}, std::move(translation));
        },
        py::arg("sequence"), py::arg("translation"), py::kw_only(), py::arg("window") = 0, py::arg("tokens") = nullptr);
}

}  // namespace specllama
