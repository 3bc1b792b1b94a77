// The kernels of the states of recurrent layers, for tests.
#include <pybind11/numpy.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/instruction_sets.hpp"
#include "bindings/test/parts.hpp"
#include "kernels/float_kernels.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Applies tokens to a state [rows][length]. decays: [tokens][1 or length]; keys, queries: [tokens][length];
// values: [tokens][rows]; rates: [tokens]; at_once: how many tokens each call of the kernel gets.
py::tuple update_state(const Floats & state, const Floats & decays, const Floats & keys, const Floats & queries,
                       const Floats & values, const Floats & rates, float scale, bool is_delta,
                       const std::string & set_name, int at_once) {
    if (state.ndim() != 2 || decays.ndim() != 2 || keys.ndim() != 2 || queries.ndim() != 2 || values.ndim() != 2 ||
        rates.ndim() != 1 || state.shape(1) % kernels::kFloatLanes != 0 || at_once < 1 ||
        at_once > kernels::kMostSteps || (decays.shape(1) != 1 && decays.shape(1) != state.shape(1)) ||
        keys.shape(1) != state.shape(1) || queries.shape(1) != state.shape(1) || values.shape(1) != state.shape(0) ||
        std::min({decays.shape(0), keys.shape(0), queries.shape(0), values.shape(0)}) < rates.shape(0)) {
        throw std::invalid_argument("the state and the tokens do not belong together");
    }
    const py::ssize_t tokens = rates.shape(0);
    const py::ssize_t rows = state.shape(0);
    const py::ssize_t length = state.shape(1);
    Floats out({tokens, rows});
    Floats kept({tokens, rows, length});
    Floats after({rows, length});
    kernels::HeadState head = {state.data(), after.mutable_data(), rows, length, scale, is_delta, decays.shape(1) > 1};
    for (py::ssize_t first = 0; first < tokens; first += at_once) {
        std::vector<kernels::StateStep> steps;
        for (py::ssize_t i = first; i < std::min<py::ssize_t>(first + at_once, tokens); ++i) {
            steps.push_back({decays.data(i, 0), keys.data(i, 0), queries.data(i, 0), values.data(i, 0), *rates.data(i),
                             out.mutable_data(i, 0), kept.mutable_data(i, 0, 0)});
        }
        set_named(set_name).floats.update_state(head, steps.data(), static_cast<int>(steps.size()));
        head.from = head.to;
    }
    return py::make_tuple(out, after, kept);
}

}  // namespace

void bind_recurrent_for_tests(py::module_ & module) {
    module.def("update_state", &update_state, py::arg("state"), py::arg("decays"), py::arg("keys"), py::arg("queries"),
               py::arg("values"), py::arg("rates"), py::arg("scale"), py::arg("is_delta"), py::arg("instruction_set"),
               py::arg("at_once"),
               "The results of some tokens [tokens, rows], the state after them [rows, length], and the states after "
               "each [tokens, rows, length], as the kernels compute them.");
}

}  // namespace specllama
