// The pace (pacing/pace.hpp), which tests drive without models.
#include "pacing/pace.hpp"
#include "drafters/table.hpp"

#include <pybind11/stl.h>

#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/result_struct.hpp"
#include "bindings/test/parts.hpp"
#include "drafters/drawn_token.hpp"
#include "drafters/grammar.hpp"
#include "drafters/lookup.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

const char * name_of(Pace::Move move) {
    constexpr std::array<const char *, 3> names{"stop", "draw", "take"};
    return names[static_cast<std::size_t>(move)];
}

std::map<std::string, double> pace_constants() {
    const PaceConstants constants;
#define SPECLLAMA_ENTRY(name, value, about) {#name, constants.name},
    return {SPECLLAMA_PACE_CONSTANTS(SPECLLAMA_ENTRY)};
#undef SPECLLAMA_ENTRY
}

void set(PaceConstants & constants, const std::string & given, double number) {
#define SPECLLAMA_SET(name, value, about) \
    if (given == #name) {                 \
        constants.name = number;          \
        return;                           \
    }
    SPECLLAMA_PACE_CONSTANTS(SPECLLAMA_SET)
#undef SPECLLAMA_SET
    throw std::invalid_argument("'" + given + "' is no constant of the pace: Pace.constants() lists them");
}

// Makes a pace. Constants that are not given keep their defaults. drawers: the arguments of Pace::add_drawer.
std::unique_ptr<Pace> make_pace(const std::map<std::string, double> & given,
                                const std::vector<std::tuple<std::string, std::size_t, std::size_t>> & drawers) {
    PaceConstants constants;
    for (const auto & [name, number] : given) {
        set(constants, name, number);
    }
    auto pace = std::make_unique<Pace>(all_priors(), constants);
    for (const auto & [name, n_batch, block] : drawers) {
        pace->add_drawer(name == "head" ? Source::head : Source::model, n_batch, block);
    }
    return pace;
}

}  // namespace

void bind_pace_for_tests(py::module_ & module) {
    ResultStruct<Pace::Decision>(module, "Decision", "What a round does next.")
        .field(
            "move", [](const Pace::Decision & self) { return name_of(self.move); }, "stop, draw or take.")
        .field("count", &Pace::Decision::count, "How many tokens it drafts or takes.")
        .field("offer", &Pace::Decision::offer, "Index of the offer that is taken.");
    py::class_<CostModel>(module, "CostModel", "What a batch of n tokens costs.")
        .def(py::init<>())
        .def("observe", &CostModel::observe, py::arg("n"), py::arg("seconds"))
        .def("restore", &CostModel::restore, py::arg("seconds"))
        .def("seconds", &CostModel::seconds, py::arg("n"))
        .def("among", &CostModel::among, py::arg("others"), py::arg("texts"))
        .def("known", &CostModel::known);
    py::class_<Expectation>(module, "Expectation", "What is expected of a token that could be drafted.")
        .def_static(
            "of_model",
            [](double probability, std::size_t before, bool by_head) {
                return drawn_expectation(by_head ? Source::head : Source::model, probability, before);
            },
            py::arg("probability"), py::arg("before"), py::arg("by_head") = false)
        .def_static("of_lookup", &lookup_expectation, py::arg("length"), py::arg("disputed"))
        .def_static("of_grammar", &grammar_expectation, py::arg("is_unique"));
    py::class_<Pace>(module, "Pace", "What decides how much is drafted.")
        .def(py::init(&make_pace), py::arg("constants") = std::map<std::string, double>(),
             py::arg("drawers") = std::vector<std::tuple<std::string, std::size_t, std::size_t>>{{"model", 512, 1}})
        .def_static("constants", &pace_constants)
        .def("begin_generation", &Pace::begin_generation)
        .def("end_generation", &Pace::end_generation, py::arg("num_tokens"), py::arg("max_tokens"))
        .def("share", &Pace::share, py::arg("texts"), py::arg("others"), py::arg("target"), py::arg("num_drawing"),
             py::arg("drafts"))
        .def("probes", &Pace::probes, py::arg("drawer") = 0)
        .def(
            "prompt_pays",
            [](Pace & self, std::size_t missing, std::size_t most, std::size_t max_tokens) {
                std::vector<bool> pay{true};
                self.weigh_prompts({missing}, most, max_tokens, pay);
                return bool(pay[0]);
            },
            py::arg("missing"), py::arg("most"), py::arg("max_tokens"))
        .def(
            "prompts_pay",
            [](Pace & self, const std::vector<std::size_t> & missing, std::size_t most, std::size_t max_tokens) {
                std::vector<bool> pay(missing.size(), true);
                self.weigh_prompts(missing, most, max_tokens, pay);
                return pay;
            },
            py::arg("missing"), py::arg("most"), py::arg("max_tokens"))
        .def("decoded", &Pace::decoded, py::arg("count"), py::arg("seconds"))
        .def(
            "begin_round",
            [](Pace & self, std::size_t most, std::size_t missing) { self.begin_round(most, {missing}); },
            py::arg("most"), py::arg("missing"))
        .def("begin_round", &Pace::begin_round, py::arg("most"), py::arg("missing"))
        .def("decide", &Pace::decide, py::arg("offers"))
        .def("before", &Pace::before)
        .def("drafted", &Pace::drafted, py::arg("token"))
        .def("end_round", &Pace::end_round, py::arg("num_accepted"), py::arg("verify_seconds"),
             py::arg("draft_seconds"))
        .def("judge_unused", &Pace::judge_unused, py::arg("offer"), py::arg("num_right"), py::arg("num_judged"))
        .def_property_readonly("target", &Pace::target, py::return_value_policy::reference_internal)
        .def_property_readonly(
            "draft", [](Pace & self) -> CostModel & { return self.draft(0); },
            py::return_value_policy::reference_internal)
        .def("draft_of", &Pace::draft, py::arg("drawer"), py::return_value_policy::reference_internal)
        .def_property_readonly("drawer", &Pace::drawer)
        .def_property_readonly("exploring_seconds",
                               [](const Pace & self) { return self.counters().exploring_seconds; });
}

}  // namespace specllama
