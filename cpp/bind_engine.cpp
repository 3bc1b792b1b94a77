// The loop. Every call that decodes runs without the GIL.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings.hpp"
#include "bindings/python_calls.hpp"
#include "drafter_parts.hpp"
#include "speculator.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Tokens = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Scores = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::vector<int32_t> to_vector(const Tokens & tokens) { return {tokens.data(), tokens.data() + tokens.size()}; }

Tokens to_array(const std::vector<int32_t> & tokens) {
    return Tokens(static_cast<py::ssize_t>(tokens.size()), tokens.data());
}

std::map<std::string, std::size_t> idle_rounds(const Counters & self) {
    std::map<std::string, std::size_t> result;
    for (std::size_t i = 0; i < num_idle; ++i) {
        result[idle_names[i]] = self.pace.idle_rounds[i];
    }
    return result;
}

std::map<std::string, SourceCounters> per_source(const Counters & self) {
    std::map<std::string, SourceCounters> result;
    for (std::size_t i = 0; i < num_sources; ++i) {
        result[drafters[i].name] = self.per_source[i];
    }
    return result;
}

void bind_drafters(py::module_ & module) {
    py::class_<DrafterAbout>(module, "Drafter", "A way of drafting, as the table of drafters has it.")
        .def_property_readonly("name", [](const DrafterAbout & self) { return self.name; })
        .def_property_readonly("origin", [](const DrafterAbout & self) { return self.origin; })
        .def_property_readonly("needs", [](const DrafterAbout & self) { return self.needs; })
        .def_property_readonly("summary", [](const DrafterAbout & self) { return self.summary; })
        .def("__repr__", [](const DrafterAbout & self) { return std::string("Drafter(") + self.name + ")"; });
    module.def("drafters", [] { return std::vector<DrafterAbout>(drafters.begin(), drafters.end()); });
}

void bind_counters(py::module_ & module) {
    py::class_<SourceCounters>(module, "SourceCounters")
        .def_readonly("num_drafts", &SourceCounters::num_drafts)
        .def_readonly("num_draft_tokens", &SourceCounters::num_draft_tokens)
        .def_readonly("num_accepted_tokens", &SourceCounters::num_accepted_tokens);
    py::class_<Counters>(module, "Counters")
        .def_readonly("num_prompt_tokens", &Counters::num_prompt_tokens)
        .def_readonly("num_prompt_tokens_reused", &Counters::num_prompt_tokens_reused)
        .def_readonly("num_drafts", &Counters::num_drafts)
        .def_readonly("num_draft_tokens", &Counters::num_draft_tokens)
        .def_readonly("num_accepted_tokens", &Counters::num_accepted_tokens)
        .def_readonly("num_emitted_tokens", &Counters::num_emitted_tokens)
        .def_readonly("num_draft_tokens_per_pos", &Counters::num_draft_tokens_per_pos)
        .def_readonly("num_accepted_tokens_per_pos", &Counters::num_accepted_tokens_per_pos)
        .def_readonly("num_rounds_per_gamma", &Counters::num_rounds_per_gamma)
        .def_property_readonly("per_source", &per_source)
        .def_property_readonly("plain_seconds", [](const Counters & self) { return self.pace.plain_seconds; })
        .def_property_readonly("exploring_seconds", [](const Counters & self) { return self.pace.exploring_seconds; })
        .def_property_readonly("idle_rounds", &idle_rounds)
        .def_property_readonly("num_dropped", [](const Counters & self) { return self.pace.num_dropped; })
        .def_property_readonly("prompt_skipped", [](const Counters & self) { return self.pace.prompt_skipped; })
        .def_property_readonly("predicted_tokens", [](const Counters & self) { return self.pace.predicted_tokens; })
        .def_property_readonly("predicted_seconds", [](const Counters & self) { return self.pace.predicted_seconds; })
        .def_readonly("num_reached_tokens", &Counters::num_reached_tokens)
        .def_readonly("sum_overlap", &Counters::sum_overlap)
        .def_readonly("sum_argmax_match", &Counters::sum_argmax_match)
        .def_readonly("num_target_tokens_decoded", &Counters::num_target_tokens_decoded)
        .def_readonly("num_draft_tokens_decoded", &Counters::num_draft_tokens_decoded)
        .def_readonly("prompt_seconds", &Counters::prompt_seconds)
        .def_readonly("draft_seconds", &Counters::draft_seconds)
        .def_readonly("verify_seconds", &Counters::verify_seconds)
        .def_readonly("sample_seconds", &Counters::sample_seconds)
        .def_readonly("rollback_seconds", &Counters::rollback_seconds);
}

[[noreturn]] void refuse_scores(const py::object & given, std::size_t n_vocab) {
    const std::string type = py::str(py::type::of(given).attr("__name__"));
    const std::string message = "the logits processor returned a " + type + " that is no array of " +
                                std::to_string(n_vocab) + " numbers: it must return the scores of all tokens";
    PyErr_SetString(PyExc_ValueError, message.c_str());
    throw py::error_already_set();
}

// What function(history, scores) makes of a row of logits. It gets a copy, into which it may write.
void process(const py::object & function, const Tokens & history, std::vector<float> & logits) {
    const py::object result = function(history, Scores(static_cast<py::ssize_t>(logits.size()), logits.data()));
    const auto processed = Scores::ensure(result);
    if (!processed || processed.ndim() != 1 || static_cast<std::size_t>(processed.size()) != logits.size()) {
        refuse_scores(result, logits.size());
    }
    std::copy_n(processed.data(), logits.size(), logits.begin());
}

LogitsProcessor python_processor(const py::object & function, std::vector<int32_t> prompt) {
    if (function.is_none()) {
        return nullptr;
    }
    return [owned = std::make_shared<OwnedByPython>(function), prompt = std::move(prompt)](
               const int32_t * recent, std::size_t n_recent, std::vector<float> & logits) {
        std::vector<int32_t> history = prompt;
        history.insert(history.end(), recent, recent + n_recent);
        const py::gil_scoped_acquire gil;
        try {
            process(owned->function, to_array(history), logits);
        } catch (const py::error_already_set & error) {
            throw PythonError{error};  // NOLINT(bugprone-std-exception-baseclass): so that it is not caught
        }
    };
}

// Looks at signals, and calls a function that may raise.
std::function<void()> python_heed(const py::object & function) {
    return [owned = std::make_shared<OwnedByPython>(function)] {
        const py::gil_scoped_acquire gil;
        try {
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
            if (!owned->function.is_none()) {
                owned->function();
            }
        } catch (const py::error_already_set & error) {
            throw PythonError{error};  // NOLINT(bugprone-std-exception-baseclass): so that it is not caught
        }
    };
}

// function(history, gamma) -> (tokens, distributions). A round runs without the GIL, and the drafter with it.
auto drafting_function(const py::object & function) -> decltype(DrafterParts::function) {
    if (function.is_none()) {
        return nullptr;
    }
    return [owned = std::make_shared<OwnedByPython>(function)](const DraftRequest & request, Offer & out) {
        const py::gil_scoped_acquire gil;
        try {
            const py::tuple proposal = owned->function(to_array(request.history), request.gamma);
            out.tokens = proposal[0].cast<std::vector<int32_t>>();
            out.q = proposal[1].cast<std::vector<Distribution>>();
        } catch (const py::error_already_set & error) {
            if (!error.matches(PyExc_Exception)) {
                throw PythonError{error};  // NOLINT(bugprone-std-exception-baseclass): so that it is not caught
            }
            throw std::runtime_error(error.what());  // whoever catches it has no GIL
        }
    };
}

// Plain without drafters.
std::unique_ptr<Speculator> make_speculator(std::shared_ptr<Sequence> target, const std::vector<std::string> & names,
                                            std::shared_ptr<Sequence> draft, const std::optional<Tokens> & corpus,
                                            const py::object & function) {
    const DrafterParts parts{std::move(draft), corpus ? to_vector(*corpus) : std::vector<int32_t>(),
                             drafting_function(function)};
    std::vector<std::unique_ptr<Drafter>> drafters;
    drafters.reserve(names.size());
    for (const std::string & name : names) {
        drafters.push_back(make_drafter(name, parts));
    }
    return std::make_unique<Speculator>(std::move(target),
                                        names.empty() ? nullptr : std::make_unique<Drafting>(std::move(drafters)));
}

void begin(Speculator & self, const Tokens & prompt, const SamplerParams & sampler, const std::string & rule,
           std::size_t num_draft_tokens, std::uint64_t seed, bool paced, std::size_t max_tokens,
           const py::object & logits_processor, std::shared_ptr<Constraint> constraint, const py::object & heed) {
    std::vector<int32_t> tokens = to_vector(prompt);
    LogitsProcessor processor = python_processor(logits_processor, tokens);
    Settings settings{sampler,
                      &rule_by_name(rule),
                      num_draft_tokens,
                      paced,
                      max_tokens,
                      seed,
                      std::move(processor),
                      std::move(constraint),
                      python_heed(heed)};
    if (settings.sampler.dry.on()) {
        settings.sampler.dry.prompt = tokens;
    }
    const py::gil_scoped_release release;
    self.begin(std::move(tokens), std::move(settings));
}

// (tokens, number drafted, number accepted)
py::tuple step(Speculator & self, std::size_t max_tokens) {
    const Round round = without_gil([&] { return self.step(max_tokens); });
    return py::make_tuple(round.tokens, round.num_drafted, round.num_accepted);
}

using Costs = std::map<std::size_t, double>;

// T(n) in seconds of target and draft, as far as it is known.
std::pair<Costs, Costs> costs(Speculator & self) {
    Pace * pace = self.pace();
    return pace == nullptr ? std::pair<Costs, Costs>() : std::make_pair(pace->target().known(), pace->draft().known());
}

void restore_costs(Speculator & self, const Costs & target, const Costs & draft) {
    if (Pace * pace = self.pace()) {
        pace->target().restore(target);
        pace->draft().restore(draft);
    }
}

void bind_speculator(py::module_ & module) {
    py::class_<Speculator>(module, "Speculator")
        .def(py::init(&make_speculator), py::arg("target"), py::arg("drafters") = std::vector<std::string>(),
             py::kw_only(), py::arg("draft") = nullptr, py::arg("corpus") = py::none(),
             py::arg("function") = py::none())
        .def("begin", &begin, py::arg("prompt"), py::kw_only(), py::arg("sampler"), py::arg("rule"),
             py::arg("num_draft_tokens"), py::arg("seed"), py::arg("paced") = false,
             py::arg("max_tokens") = static_cast<std::size_t>(-1), py::arg("logits_processor") = py::none(),
             py::arg("constraint") = nullptr, py::arg("heed") = py::none())
        .def("prefill", [](Speculator & self) { return without_gil([&] { return self.prefill(); }); })
        .def("step", &step, py::arg("max_tokens"))
        .def_property_readonly("round_is_open", &Speculator::round_is_open)
        .def("decode_pending", [](Speculator & self) { without_gil([&] { self.decode_pending(); }); })
        .def(
            "logits",
            [](Speculator & self, std::size_t i) {
                return py::array_t<float>(static_cast<py::ssize_t>(self.n_vocab()), self.logits(i));
            },
            py::arg("i"))
        .def("sources",
             [](const Speculator & self) {
                 std::vector<const char *> names;
                 for (const Source source : self.sources()) {
                     names.push_back(about(source).name);
                 }
                 return names;
             })
        .def("acceptance_probability", &Speculator::acceptance_probability, py::arg("i"))
        .def("rewind", &Speculator::rewind, py::arg("count"))
        .def(
            "extend", [](Speculator & self, const Tokens & tokens) { self.extend(to_vector(tokens)); },
            py::arg("tokens"))
        .def("finish", &Speculator::finish, py::arg("count"))
        .def("history", [](const Speculator & self) { return to_array(self.history()); })
        .def_property_readonly("costs", &costs)
        .def("restore_costs", &restore_costs, py::arg("target"), py::arg("draft"))
        .def_property_readonly("counters", [](const Speculator & self) { return self.counters(); })
        .def_property_readonly("drafting_stopped", &Speculator::drafting_stopped);
}

}  // namespace

void bind_engine(py::module_ & module) {
    bind_drafters(module);
    bind_counters(module);
    bind_speculator(module);
}

}  // namespace specllama
