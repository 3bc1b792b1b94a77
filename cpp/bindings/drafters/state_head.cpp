// Drafts with a head that llama.cpp does not compute. Python gives the head's weights as arrays of bytes, in the layout
// of the head's file.
#include "drafters/state_head.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/drafters.hpp"
#include "bindings/python_calls.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

void require_bytes(const Bytes & data, int type, std::size_t rows, std::size_t columns) {
    const std::size_t wanted = rows * bytes_of_row(type, columns);
    if (static_cast<std::size_t>(data.size()) != wanted) {
        throw std::invalid_argument("a matrix of " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                                    " numbers has " + std::to_string(wanted) + " bytes, and not " +
                                    std::to_string(data.size()));
    }
}

std::shared_ptr<Matrix> make_matrix(int type, std::size_t rows, std::size_t columns, const Bytes & data) {
    require_bytes(data, type, rows, columns);
    return std::make_shared<Matrix>(type, rows, columns, data.data());
}

// The array is not copied: it may be a part of a mapped file.
std::shared_ptr<Rows> make_rows(int type, std::size_t rows, std::size_t columns, const Bytes & data) {
    require_bytes(data, type, rows, columns);
    const auto owner = std::make_shared<OwnedByPython>(data);
    return std::make_shared<Rows>(type, rows, columns, std::shared_ptr<const std::uint8_t>(owner, data.data()));
}

std::shared_ptr<Linear> make_linear(std::shared_ptr<Matrix> weight, const std::optional<Floats> & bias) {
    std::vector<float> values;
    if (bias) {
        values.assign(bias->data(), bias->data() + bias->size());
    }
    return std::make_shared<Linear>(Linear{std::move(weight), std::move(values)});
}

std::vector<Linear> copies(const std::vector<std::shared_ptr<Linear>> & given) {
    std::vector<Linear> all;
    all.reserve(given.size());
    for (const std::shared_ptr<Linear> & one : given) {
        all.push_back(*one);
    }
    return all;
}

using Layers = std::vector<std::pair<std::shared_ptr<Linear>, std::shared_ptr<Linear>>>;

std::shared_ptr<StateHead> make_head(std::size_t n_embd, std::size_t n_vocab, const std::vector<Layers> & places,
                                     const std::vector<std::shared_ptr<Linear>> & hidden,
                                     const std::vector<std::shared_ptr<Linear>> & outputs, const Tokens & tokens,
                                     const std::shared_ptr<Rows> & embeddings) {
    StateHead::Parts parts;
    parts.n_embd = n_embd;
    parts.n_vocab = n_vocab;
    for (const Layers & layers : places) {
        std::vector<ResidualLayer> & place = parts.places.emplace_back();
        for (const auto & [curved, straight] : layers) {
            place.push_back({*curved, straight ? std::optional(*straight) : std::nullopt});
        }
    }
    parts.hidden = copies(hidden);
    parts.outputs = copies(outputs);
    parts.tokens = to_vector(tokens);
    if (embeddings) {
        parts.embeddings = *embeddings;
    }
    return std::make_shared<StateHead>(std::move(parts));
}

// Returns the logits [count][num_said] of the drafted positions [first, first + count).
py::array_t<float> say(const StateHead & self, const Floats & state, const Tokens & tokens, std::size_t first,
                       std::size_t count) {
    const auto most = static_cast<std::size_t>(tokens.size());
    const auto is_none = [&self](std::int32_t token) {
        return token < 0 || static_cast<std::size_t>(token) >= self.n_vocab();
    };
    if (static_cast<std::size_t>(state.size()) != self.n_embd() || first + count > self.size() ||
        (self.reads_tokens() && most < first + count) || std::any_of(tokens.data(), tokens.data() + most, is_none)) {
        throw std::invalid_argument("the places, the state or the tokens do not fit this head");
    }
    std::vector<float> found;
    self.say(state.data(), tokens.data(), first, count, found);
    return py::array_t<float>({static_cast<py::ssize_t>(count), static_cast<py::ssize_t>(self.num_said())},
                              found.data());
}

}  // namespace

void bind_state_head_drafter(py::module_ & module, DrafterClass & drafter) {
    module.def("bytes_of_row", &bytes_of_row, py::arg("type"), py::arg("columns"),
               "Returns how many bytes a matrix row of `columns` values has. type: the type's number in GGUF files.");
    py::class_<Matrix, std::shared_ptr<Matrix>>(module, "Matrix", "A matrix of a head, in the type of its file.")
        .def(py::init(&make_matrix), py::arg("type"), py::arg("rows"), py::arg("columns"), py::arg("data"));
    py::class_<Rows, std::shared_ptr<Rows>>(module, "Rows",
                                            "Rows of a matrix that are read from the file's memory without a copy.")
        .def(py::init(&make_rows), py::arg("type"), py::arg("rows"), py::arg("columns"), py::arg("data"));
    py::class_<Linear, std::shared_ptr<Linear>>(module, "Linear", "A layer that computes W x + b.")
        .def(py::init(&make_linear), py::arg("weight"), py::arg("bias") = py::none());
    py::class_<StateHead, std::shared_ptr<StateHead>>(module, "StateHead",
                                                      "A head that reads the target's final state.")
        .def(py::init(&make_head), py::kw_only(), py::arg("n_embd"), py::arg("n_vocab"), py::arg("places"),
             py::arg("hidden"), py::arg("outputs"), py::arg("tokens"), py::arg("embeddings") = nullptr)
        .def_property_readonly("size", &StateHead::size)
        .def("say", &say, py::arg("state"), py::arg("tokens"), py::arg("first"), py::arg("count"));
    py::class_<HeadInUse, std::shared_ptr<HeadInUse>>(
        module, "HeadInUse", "The head of several texts, which another one may replace between generations.")
        .def(py::init([](std::size_t n_embd, std::size_t n_vocab, std::shared_ptr<StateHead> head) {
                 return std::make_shared<HeadInUse>(n_embd, n_vocab, std::move(head));
             }),
             py::arg("n_embd"), py::arg("n_vocab"), py::arg("head") = nullptr)
        .def(
            "exchange", [](HeadInUse & self, std::shared_ptr<StateHead> head) { self.exchange(std::move(head)); },
            py::arg("head").none(false));
    drafter.def_static(
        "state_head", [](std::shared_ptr<HeadInUse> in_use) { return make_state_head(std::move(in_use)); },
        py::arg("in_use"));
}

}  // namespace specllama
