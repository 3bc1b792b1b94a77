// Everything that is read from a model's vocabulary.
#include "llama/vocabulary.hpp"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/result_struct.hpp"
#include "llama/dry_breakers.hpp"
#include "llama/tokenizer.hpp"
#include "translation/translation.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

std::optional<VocabularyDifference> difference(const LlamaApi & api, std::uintptr_t target, std::uintptr_t draft) {
    return first_difference(api, at_address<const llama_vocab>(target), at_address<const llama_vocab>(draft));
}

std::shared_ptr<SequenceBreakers> breakers(const LlamaApi & api, std::uintptr_t vocab,
                                           const std::vector<std::string> & texts,
                                           const std::shared_ptr<TokenTexts> & words) {
    const auto * at = at_address<const llama_vocab>(vocab);
    return std::make_shared<SequenceBreakers>(breakers_of_texts(api, at, words ? *words : TokenTexts(api, at), texts));
}

std::vector<int32_t> tokens_of(const Tokenizer & tokenizer, const py::bytes & text, bool add_bos, bool special) {
    const auto copy = static_cast<std::string>(text);
    const GilReleased without_lock;
    return tokenizer.tokens(copy, add_bos, special);
}

void bind_tokenizer(py::module_ & module) {
    py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(module, "Tokenizer",
                                                      "llama_tokenize, for which no text is too long a word.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 return std::make_shared<Tokenizer>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"), py::keep_alive<1, 2>())
        .def("tokens", &tokens_of, py::arg("text"), py::arg("add_bos"), py::arg("special"), "The tokens of a text.")
        .def(
            "stack_for",
            [](const Tokenizer & self, const py::bytes & text) {
                const auto copy = static_cast<std::string>(text);
                const GilReleased without_lock;
                return self.stack_for(copy);
            },
            py::arg("text"), "Bytes of stack that llama.cpp's own tokenizer takes for a text; 0: always enough.")
        .def_property_readonly(
            "stack_per_character", [](const Tokenizer & self) { return self.depth().bytes; },
            "Bytes of stack that a character without a place to cut takes; 0 if none does.")
        .def_property_readonly(
            "address", [](const Tokenizer & self) { return reinterpret_cast<std::uintptr_t>(&self); },
            "In place of a llama_vocab for `function`.")
        .def_property_readonly_static(
            "function", [](const py::object &) { return reinterpret_cast<std::uintptr_t>(&Tokenizer::tokenize); },
            "Where a function is that is called as llama_tokenize is.");
}

void bind_translation(py::module_ & module) {
    py::class_<Translation, std::shared_ptr<Translation>>(module, "Translation",
                                                          "How a draft of another tokenizer reads its target's text.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t target, std::uintptr_t draft,
                         const std::vector<std::pair<int32_t, int32_t>> & roles, int32_t opening) {
                 const GilReleased without_lock;
                 return std::make_shared<Translation>(api, at_address<const llama_vocab>(target),
                                                      at_address<const llama_vocab>(draft), roles, opening);
             }),
             py::arg("api"), py::arg("target_vocab"), py::arg("draft_vocab"), py::arg("roles"), py::arg("opening"),
             py::keep_alive<1, 2>())
        .def_property_readonly("num_of_text", &Translation::num_of_text, "Tokens of text of the target.")
        .def_property_readonly("num_of_draft", &Translation::num_of_draft, "The same of the draft.")
        .def_property_readonly("num_common", &Translation::num_common, "How many of the target's the draft has.");
}

}  // namespace

void bind_vocabularies(py::module_ & module) {
    bind_tokenizer(module);
    bind_translation(module);
    using Difference = VocabularyDifference;
    ResultStruct<Difference>(module, "VocabularyDifference", "The first token whose text differs.")
        .field("token", &Difference::token, "Its id.")
        .field(
            "target_text", [](const Difference & self) { return py::bytes(self.target_text); }, "In the target.")
        .field("draft_text", [](const Difference & self) { return py::bytes(self.draft_text); }, "In the draft.");
    module.def("first_vocabulary_difference", &difference, py::arg("api"), py::arg("target_vocab"),
               py::arg("draft_vocab"),
               "Among the tokens that both vocabularies have; None if their texts are the same.");
    module.def(
        "common_tokens",
        [](const LlamaApi & api, std::uintptr_t target, std::uintptr_t draft) {
            return to_array(
                common_tokens(api, at_address<const llama_vocab>(target), at_address<const llama_vocab>(draft)));
        },
        py::arg("api"), py::arg("target_vocab"), py::arg("draft_vocab"),
        "For each of the target's tokens the draft's that is the same, whatever its id; -1: there is none.");
    py::class_<TokenTexts, std::shared_ptr<TokenTexts>>(module, "TokenTexts", "The text of every token.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 const GilReleased without_lock;
                 return std::make_shared<TokenTexts>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"));
    py::class_<FirstBytes, std::shared_ptr<FirstBytes>>(module, "FirstBytes", "The tokens by their first byte.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 return std::make_shared<FirstBytes>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"));
    module.def("breakers_of_texts", &breakers, py::arg("api"), py::arg("vocab"), py::arg("texts"),
               py::arg("words") = nullptr, ReleaseGil(),
               "DRY's sequence breakers. words: of the vocabulary, if there.");
}

}  // namespace specllama
