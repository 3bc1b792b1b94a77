// A constraint whose masks a Python object makes, and the texts of a vocabulary's tokens, which that object needs.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/result_struct.hpp"
#include "llama/vocabulary.hpp"
#include "math/mask_constraint.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

MaskConstraint::Mask mask_of(const py::object & given) {
    if (given.is_none()) {
        MaskConstraint::Mask all;
        all.is_free = true;
        return all;
    }
    const auto answer = given.cast<py::tuple>();
    const auto bytes = answer[0].cast<std::string_view>();
    MaskConstraint::Mask mask{std::vector<std::uint32_t>((bytes.size() + 3) / 4), answer[1].cast<bool>(),
                              answer[2].cast<std::int32_t>()};
    if (!bytes.empty()) {  // an empty mask has no memory to copy to
        std::memcpy(mask.allowed.data(), bytes.data(), bytes.size());
    }
    return mask;
}

MaskConstraint::Test test_of(const py::object & function) {
    if (function.is_none()) {
        return nullptr;
    }
    return [owned = std::make_shared<OwnedByPython>(function)](const int32_t * recent, std::size_t n_recent,
                                                               Candidate * candidates, std::size_t count) {
        with_gil([&] {
            std::vector<int32_t> tokens(count);
            std::transform(candidates, candidates + count, tokens.begin(),
                           [](const Candidate & one) { return one.id; });
            const py::object answer =
                called(owned->function, Tokens(static_cast<py::ssize_t>(n_recent), recent), std::move(tokens));
            const auto allowed = answer.cast<std::string_view>();
            for (std::size_t i = 0; i < count; ++i) {
                if (i >= allowed.size() || allowed[i] == 0) {
                    candidates[i].logit = -std::numeric_limits<float>::infinity();
                }
            }
        });
    };
}

std::shared_ptr<MaskConstraint> make_constraint(std::vector<std::int32_t> ends, const py::object & function,
                                                const py::object & test, std::vector<std::int32_t> probes) {
    auto source = [owned = std::make_shared<OwnedByPython>(function)](const int32_t * recent, std::size_t n_recent) {
        return with_gil(
            [&] { return mask_of(called(owned->function, Tokens(static_cast<py::ssize_t>(n_recent), recent))); });
    };
    return std::make_shared<MaskConstraint>(std::move(ends), std::move(source), test_of(test), std::move(probes));
}

std::optional<Constraint::Forced> forced(MaskConstraint & self, const std::vector<int32_t> & recent) {
    return self.forced(recent.data(), recent.size());
}

py::typing::Tuple<py::typing::List<py::bytes>, py::typing::List<py::int_>> pieces(const LlamaApi & api,
                                                                                  std::uintptr_t vocab) {
    TokenPieces found;
    {
        const GilReleased released;
        found = token_pieces(api, at_address<const llama_vocab>(vocab));
    }
    py::list texts;
    for (const std::string & piece : found.pieces) {
        texts.append(py::bytes(piece));
    }
    return py::make_tuple(texts, found.ends);
}

}  // namespace

void bind_masks(py::module_ & module) {
    module.def(
        "token_pieces", &pieces, py::arg("api"), py::arg("vocab"),
        "Returns what each token adds to a text (0xff and its name if nothing), and the tokens that end a text.");
    using Forced = Constraint::Forced;
    ResultStruct<Forced>(module, "Forced", "A token that must come next, because only one text may follow.")
        .field("token", &Forced::token, "The token with the most of that text.")
        .field("is_unique", &Forced::is_unique,
               "Whether no other token may come next; if false, shorter tokens begin the text, too.");
    py::class_<MaskConstraint, Constraint, std::shared_ptr<MaskConstraint>>(
        module, "MaskConstraint",
        "Allows the tokens of a mask. function(recent) returns (mask, may_end, guess), or None to allow all tokens. "
        "test(recent, tokens) returns a byte for each token, 0 if it is forbidden.")
        .def(py::init(&make_constraint), py::arg("ends"), py::arg("function"), py::arg("test") = py::none(),
             py::arg("probes") = std::vector<std::int32_t>())
        .def("forced", &forced, py::arg("recent"),
             "Returns the token that must follow `recent`; None if there is a choice.");
}

}  // namespace specllama
