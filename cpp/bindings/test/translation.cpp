// How a draft of another tokenizer reads a text that grows and is cut.
#include "translation/translation.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings/test/parts.hpp"

namespace py = pybind11;

namespace specllama {

void bind_translation_for_tests(py::module_ & module) {
    py::class_<TranslatedText>(module, "TranslatedText", "One text as the draft reads it.")
        .def(py::init([](const Translation & translation) { return std::make_unique<TranslatedText>(translation); }),
             py::arg("translation"), py::keep_alive<1, 2>())
        .def("read", &TranslatedText::read, py::arg("text"))
        .def_property_readonly("num_unchanged", &TranslatedText::num_unchanged)
        .def_property_readonly("num_tokenized", &TranslatedText::num_tokenized);
    module.def(
        "drafted_tokens", [](const Translation & translation) { return translation.drafted(); }, py::arg("translation"),
        "Returns, for each token of the draft, the target's token with its text; -1 if there is none.");
}

}  // namespace specllama
