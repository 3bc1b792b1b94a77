// What is asked of libllama and its vocabularies: functions, texts, grammars.
#include <pybind11/stl.h>

#include <memory>

#include "bindings.hpp"
#include "breaker_tokens.hpp"
#include "grammar.hpp"
#include "llama_api.hpp"
#include "token_texts.hpp"
#include "vocabulary.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

template <typename Pointer>
Pointer * at_address(std::uintptr_t address) {
    return reinterpret_cast<Pointer *>(address);
}

}  // namespace

void bind_api(py::module_ & module) {
    module.def("required_functions", &LlamaApi::required_functions);
    module.def("optional_functions", &LlamaApi::optional_functions);
    module.def("struct_layouts", &LlamaApi::struct_layouts);
    py::class_<LlamaApi, std::shared_ptr<LlamaApi>>(module, "LlamaApi")
        .def(py::init<const std::unordered_map<std::string, std::uintptr_t> &>(), py::arg("addresses"));
    module.def(
        "first_vocabulary_difference",
        [](const LlamaApi & api, std::uintptr_t target_vocab, std::uintptr_t draft_vocab) -> py::object {
            const auto difference = first_difference(api, at_address<const llama_vocab>(target_vocab),
                                                     at_address<const llama_vocab>(draft_vocab));
            if (!difference) {
                return py::none();
            }
            return py::make_tuple(difference->token, py::bytes(difference->target_text),
                                  py::bytes(difference->draft_text));
        },
        py::arg("api"), py::arg("target_vocab"), py::arg("draft_vocab"));
    py::class_<TokenTexts, std::shared_ptr<TokenTexts>>(module, "TokenTexts")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 return std::make_shared<TokenTexts>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"), ReleaseGil());
    module.def(
        "breakers_of_texts",
        [](const LlamaApi & api, std::uintptr_t vocab, const std::vector<std::string> & texts,
           const std::shared_ptr<TokenTexts> & words) {
            const auto * at = at_address<const llama_vocab>(vocab);
            return std::make_shared<SequenceBreakers>(
                breakers_of_texts(api, at, words ? *words : TokenTexts(api, at), texts));
        },
        py::arg("api"), py::arg("vocab"), py::arg("texts"), py::arg("words") = nullptr, ReleaseGil());
    py::class_<FirstBytes, std::shared_ptr<FirstBytes>>(module, "FirstBytes")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 return std::make_shared<FirstBytes>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"));
    py::class_<Grammar, Constraint, std::shared_ptr<Grammar>>(module, "Grammar")
        .def(py::init([](std::shared_ptr<LlamaApi> api, std::uintptr_t vocab, std::shared_ptr<FirstBytes> first_bytes,
                         const std::string & gbnf, const std::string & root) {
                 return std::make_shared<Grammar>(std::move(api), at_address<const llama_vocab>(vocab),
                                                  std::move(first_bytes), gbnf, root);
             }),
             py::arg("api"), py::arg("vocab"), py::arg("first_bytes"), py::arg("gbnf"), py::arg("root"), ReleaseGil())
        .def(
            "forced",
            [](Grammar & self, const std::vector<int32_t> & recent) -> std::optional<std::pair<int32_t, bool>> {
                const auto forced = self.forced(recent.data(), recent.size());
                return forced ? std::optional(std::make_pair(forced->token, forced->alone)) : std::nullopt;
            },
            py::arg("recent"));
}

}  // namespace specllama
