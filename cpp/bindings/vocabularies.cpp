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
    py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(
        module, "Tokenizer", "Tokenizes as llama_tokenize does, but no text can overflow the stack.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 return std::make_shared<Tokenizer>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"), py::keep_alive<1, 2>())
        .def("tokens", &tokens_of, py::arg("text"), py::arg("add_bos"), py::arg("special"),
             "Returns the tokens of a text.")
        .def(
            "stack_for",
            [](const Tokenizer & self, const py::bytes & text) {
                const auto copy = static_cast<std::string>(text);
                const GilReleased without_lock;
                return self.stack_for(copy);
            },
            py::arg("text"),
            "Returns the bytes of stack that llama.cpp's own tokenizer needs for a text; 0 if any thread has enough.")
        .def_property_readonly(
            "stack_per_character", [](const Tokenizer & self) { return self.depth().bytes; },
            "Bytes of stack for each character of a text that is not split; 0 if llama.cpp does not recurse.")
        .def_property_readonly(
            "address", [](const Tokenizer & self) { return reinterpret_cast<std::uintptr_t>(&self); },
            "Stands for the llama_vocab in calls of `function`.")
        .def_property_readonly_static(
            "function", [](const py::object &) { return reinterpret_cast<std::uintptr_t>(&Tokenizer::tokenize); },
            "The address of a function with the arguments of llama_tokenize.");
}

void bind_translation(py::module_ & module) {
    py::class_<Translation, std::shared_ptr<Translation>>(
        module, "Translation", "Translates a target's text for a draft with another tokenizer.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t target, std::uintptr_t draft,
                         const std::vector<std::pair<int32_t, int32_t>> & roles, int32_t opening) {
                 const GilReleased without_lock;
                 return std::make_shared<Translation>(api, at_address<const llama_vocab>(target),
                                                      at_address<const llama_vocab>(draft), roles, opening);
             }),
             py::arg("api"), py::arg("target_vocab"), py::arg("draft_vocab"), py::arg("roles"), py::arg("opening"),
             py::keep_alive<1, 2>())
        .def_property_readonly("num_of_text", &Translation::num_of_text, "How many of the target's tokens are text.")
        .def_property_readonly("num_of_draft", &Translation::num_of_draft, "How many of the draft's tokens are text.")
        .def_property_readonly("num_common", &Translation::num_common,
                               "How many of the target's tokens the draft has.");
}

}  // namespace

void bind_vocabularies(py::module_ & module) {
    bind_tokenizer(module);
    bind_translation(module);
    using Difference = VocabularyDifference;
    ResultStruct<Difference>(module, "VocabularyDifference",
                             "The first token whose text differs between two vocabularies.")
        .field("token", &Difference::token, "The token's id.")
        .field(
            "target_text", [](const Difference & self) { return py::bytes(self.target_text); },
            "Its text in the target's vocabulary.")
        .field(
            "draft_text", [](const Difference & self) { return py::bytes(self.draft_text); },
            "Its text in the draft's vocabulary.");
    module.def("first_vocabulary_difference", &difference, py::arg("api"), py::arg("target_vocab"),
               py::arg("draft_vocab"),
               "Compares the ids that both vocabularies have. Returns None if their texts are equal.");
    module.def(
        "common_tokens",
        [](const LlamaApi & api, std::uintptr_t target, std::uintptr_t draft) {
            return to_array(
                common_tokens(api, at_address<const llama_vocab>(target), at_address<const llama_vocab>(draft)));
        },
        py::arg("api"), py::arg("target_vocab"), py::arg("draft_vocab"),
        "Returns, for each token of the target, the draft's token that is equal, at any id; -1 if there is none.");
    py::class_<TokenTexts, std::shared_ptr<TokenTexts>>(module, "TokenTexts",
                                                        "The texts of all tokens of a vocabulary.")
        .def(py::init([](const LlamaApi & api, std::uintptr_t vocab) {
                 const GilReleased without_lock;
                 return std::make_shared<TokenTexts>(api, at_address<const llama_vocab>(vocab));
             }),
             py::arg("api"), py::arg("vocab"));
    module.def("breakers_of_texts", &breakers, py::arg("api"), py::arg("vocab"), py::arg("texts"),
               py::arg("words") = nullptr, ReleaseGil(),
               "Returns DRY's sequence breakers. words: the texts of the vocabulary, to save reading them again.");
}

}  // namespace specllama
