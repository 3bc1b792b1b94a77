// Turns the caller's Python functions into functions that the loop can call.
#include "bindings/callbacks.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "bindings/arrays.hpp"
#include "bindings/python_calls.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Scores = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Probabilities = py::array_t<double, py::array::c_style | py::array::forcecast>;

[[noreturn]] void refuse_scores(const py::object & given, std::size_t n_vocab) {
    const std::string type = py::str(py::type::of(given).attr("__name__"));
    const std::string message = "the logits processor returned a " + type + " that is no array of " +
                                std::to_string(n_vocab) + " numbers: it must return the scores of all tokens";
    PyErr_SetString(PyExc_ValueError, message.c_str());
    throw py::error_already_set();
}

// Calls function(history, scores), where scores is a copy of the row of logits. The function may write into this copy.
// The returned scores become the logits.
void process(const py::object & function, const Tokens & history, std::vector<float> & logits) {
    const py::object result = called(function, history, Scores(static_cast<py::ssize_t>(logits.size()), logits.data()));
    const auto processed = Scores::ensure(result);
    if (!processed || processed.ndim() != 1 || static_cast<std::size_t>(processed.size()) != logits.size()) {
        refuse_scores(result, logits.size());
    }
    std::copy_n(processed.data(), logits.size(), logits.begin());
}

// Makes a dense distribution of each row of an array [tokens, n_vocab].
std::vector<Distribution> rows_of(const Probabilities & q, std::size_t count, std::size_t n_vocab) {
    if (q.ndim() != 2 || static_cast<std::size_t>(q.shape(0)) != count ||
        static_cast<std::size_t>(q.shape(1)) != n_vocab) {
        const std::string shape = py::str(q.attr("shape"));
        throw std::invalid_argument("the drafter gave " + std::to_string(count) + " tokens and a q of shape " + shape +
                                    ": it must be (" + std::to_string(count) + ", " + std::to_string(n_vocab) +
                                    "), a row for each token with the probabilities of the whole vocabulary");
    }
    std::vector<Distribution> rows(count);
    for (std::size_t i = 0; i < count; ++i) {
        const double * row = q.data(static_cast<py::ssize_t>(i), 0);
        rows[i].probs.assign(row, row + n_vocab);
    }
    return rows;
}

DraftedByFunction drafted(const py::tuple & proposal, const DraftRequest & request) {
    DraftedByFunction out;
    out.tokens = proposal[0].cast<std::vector<int32_t>>();
    const py::object q = proposal[1];
    out.q = py::isinstance<py::array>(q) ? rows_of(q.cast<Probabilities>(), out.tokens.size(), request.target.n_vocab())
                                         : q.cast<std::vector<Distribution>>();
    return out;
}

}  // namespace

LogitsProcessor python_processor(const py::object & function, std::vector<int32_t> prompt) {
    if (function.is_none()) {
        return nullptr;
    }
    return [owned = std::make_shared<OwnedByPython>(function), prompt = std::move(prompt)](
               const int32_t * recent, std::size_t n_recent, std::vector<float> & logits) {
        std::vector<int32_t> history = prompt;
        history.insert(history.end(), recent, recent + n_recent);
        with_gil([&] { process(owned->function, to_array(history), logits); });
    };
}

std::function<void()> python_poll(const py::object & function) {
    return [owned = std::make_shared<OwnedByPython>(function)] {
        with_gil([&] {
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
            if (!owned->function.is_none()) {
                called(owned->function);
            }
        });
    };
}

DraftingFunction drafting_function(const py::object & function) {
    return [owned = std::make_shared<OwnedByPython>(function)](const DraftRequest & request) {
        return with_gil([&] {
            try {
                return drafted(called(owned->function, to_array(request.history), request.gamma), request);
            } catch (const py::error_already_set & error) {
                if (!error.matches(PyExc_Exception)) {
                    throw;
                }
                // A std::runtime_error replaces the Python exception, because the loop catches the error without the
                // GIL.
                throw std::runtime_error(static_cast<std::string>(py::str(error.value())));
            }
        });
    };
}

}  // namespace specllama
