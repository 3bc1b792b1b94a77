// Grammars: what may follow a text.
#include <pybind11/stl.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/result_struct.hpp"
#include "llama/grammar.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

std::shared_ptr<Grammar> make_grammar(std::shared_ptr<LlamaApi> api, std::uintptr_t vocab,
                                      std::shared_ptr<FirstBytes> first_bytes, const std::string & gbnf,
                                      const std::string & root) {
    const GilReleased released;
    return std::make_shared<Grammar>(std::move(api), at_address<const llama_vocab>(vocab), std::move(first_bytes), gbnf,
                                     root);
}

std::optional<Constraint::Forced> forced(Grammar & self, const std::vector<int32_t> & recent) {
    return self.forced(recent.data(), recent.size());
}

}  // namespace

void bind_grammars(py::module_ & module) {
    using Forced = Constraint::Forced;
    ResultStruct<Forced>(module, "Forced", "A token that must come next, because only one text may follow.")
        .field("token", &Forced::token, "The token with the most of that text.")
        .field("alone", &Forced::alone,
               "Whether no other token may come next; if false, shorter tokens begin the text, too.");
    py::class_<Grammar, Constraint, std::shared_ptr<Grammar>>(module, "Grammar", "A GBNF grammar.")
        .def(py::init(&make_grammar), py::arg("api"), py::arg("vocab"), py::arg("first_bytes"), py::arg("gbnf"),
             py::arg("root"))
        .def("forced", &forced, py::arg("recent"),
             "Returns the token that must follow `recent`; None if there is a choice.");
}

}  // namespace specllama
