// Drafts with a smaller model.
#include "drafters/model.hpp"

#include <pybind11/stl.h>
#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/drafters.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// Makes the list of tokens that a draft may draw: the `usual` ones, and all tokens that end a text.
std::shared_ptr<DraftTokens> make_draft_tokens(const Decoder & draft, const Tokens & usual) {
    TokenList list = make_list(draft.n_vocab(), usual);
    for (std::size_t token = 0; token < draft.n_vocab(); ++token) {
        if (draft.is_eog(static_cast<int32_t>(token))) {
            list.add(static_cast<int32_t>(token));
        }
    }
    return std::make_shared<DraftTokens>(std::move(list));
}

void bind_draft_tokens(py::module_ & module) {
    py::class_<DraftTokens, std::shared_ptr<DraftTokens>>(
        module, "DraftTokens", "The list of tokens that a draft model chooses among. Each text adds its own tokens.")
        .def(py::init(&make_draft_tokens), py::arg("draft"), py::arg("usual"))
        .def_property_readonly("groups", [](const DraftTokens & self) { return to_array(self.usual().groups()); })
        .def(
            "apart", [](const DraftTokens & self) { return std::make_shared<DraftTokens>(self.usual()); },
            "Returns the same list, which counts what is written by itself.")
        .def("take_written", &DraftTokens::take_written,
             "Returns how many tokens of each group the target has written since the last call.");
}

std::shared_ptr<Drafter> make_model(std::shared_ptr<Sequence> sequence, std::size_t window,
                                    std::shared_ptr<DraftTokens> tokens, std::optional<int32_t> mask,
                                    std::shared_ptr<TokenMap> map, std::shared_ptr<Drafter> inner) {
    return made<ModelDrafter>(Source::model, ModelParts{std::move(sequence), window, std::move(tokens), mask,
                                                        std::move(map), std::move(inner)});
}

}  // namespace

void bind_model_drafter(py::module_ & module, DrafterClass & drafter) {
    bind_draft_tokens(module);
    py::class_<TokenMap, std::shared_ptr<TokenMap>>(module, "TokenMap",
                                                    "Maps a draft's tokens to its target's, and back.")
        .def(py::init([](const Tokens & read, const Tokens & drafted) {
                 return std::make_shared<TokenMap>(to_vector(read), to_vector(drafted));
             }),
             py::arg("read"), py::arg("drafted"));
    drafter.def_static("model", &make_model, py::arg("sequence"), py::kw_only(), py::arg("window") = 0,
                       py::arg("tokens") = nullptr, py::arg("mask") = py::none(), py::arg("map") = nullptr,
                       py::arg("inner") = nullptr, "inner: guesses what the model will draw.");
}

}  // namespace specllama
