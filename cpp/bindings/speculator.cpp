// The speculative loop. Every call that decodes runs without the GIL.
#include "loop/speculator.hpp"
#include "loop/scheduler.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/callbacks.hpp"
#include "bindings/drafters.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/result_struct.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// Makes the loop for one text. Without drafters it decodes plainly.
std::unique_ptr<Speculator> make_speculator(std::shared_ptr<Sequence> target,
                                            std::vector<std::shared_ptr<Drafter>> drafters,
                                            std::shared_ptr<Scheduler> scheduler) {
    for (const std::shared_ptr<Drafter> & drafter : drafters) {
        const std::size_t wanted = drafter->state_size();
        if (wanted > 0 && wanted != target->decoder().state_size()) {
            throw std::invalid_argument("the head reads " + std::to_string(wanted) +
                                        " numbers for each token, and the target's context was made to show " +
                                        std::to_string(target->decoder().state_size()));
        }
    }
    std::unique_ptr<Decoding> decoding =
        scheduler ? Scheduler::text(std::move(scheduler), target->id()) : std::make_unique<SingleText>();
    return std::make_unique<Speculator>(std::move(target), std::move(decoding),
                                        drafters.empty() ? nullptr : std::make_unique<Drafting>(std::move(drafters)));
}

void begin(Speculator & self, const Tokens & prompt, const SamplerParams & sampler, const std::string & rule,
           std::size_t num_draft_tokens, std::uint64_t seed, bool paced, std::size_t max_tokens,
           const py::object & logits_processor, std::shared_ptr<Constraint> constraint, const py::object & poll,
           bool keeps_logits, const std::optional<Tokens> & corpus, std::size_t num_likely) {
    std::vector<int32_t> tokens = to_vector(prompt);
    LogitsProcessor processor = python_processor(logits_processor, tokens);
    Settings settings;
    settings.sampler = sampler;
    settings.rule = &rule_by_name(rule);
    settings.num_draft_tokens = num_draft_tokens;
    settings.paced = paced;
    settings.max_tokens = max_tokens;
    settings.seed = seed;
    settings.logits_processor = std::move(processor);
    settings.constraint = std::move(constraint);
    settings.poll = python_poll(poll);
    settings.keeps_logits = keeps_logits;
    settings.corpus = corpus ? to_vector(*corpus) : std::vector<int32_t>();
    settings.num_likely = num_likely;
    if (settings.sampler.has_dry()) {
        settings.sampler.dry_prompt = tokens;
    }
    without_gil([&] { self.begin(std::move(tokens), std::move(settings)); });
}

py::array_t<float> logits(Speculator & self, std::size_t i) {
    return py::array_t<float>(static_cast<py::ssize_t>(self.n_vocab()), self.logits(i));
}

template <typename T>
py::array_t<T> matrix(const std::vector<T> & values, std::size_t columns) {
    const std::size_t rows = columns == 0 ? 0 : values.size() / columns;
    return py::array_t<T>({rows, columns}, values.data());
}

py::tuple take_examples(Speculator & self) {
    const Examples taken = self.take_examples();
    return py::make_tuple(to_array(taken.places), matrix(taken.states, taken.state_size()),
                          matrix(taken.likely, taken.num_likely()), matrix(taken.shares, taken.num_likely()));
}

std::vector<const char *> sources(const Speculator & self) {
    std::vector<const char *> names;
    for (const Expectation & token : self.drafted()) {
        names.push_back(about(token.source).name);
    }
    return names;
}

Costs costs(Speculator & self) {
    Pace * pace = self.pace();
    if (pace == nullptr) {
        return {};
    }
    Costs all{pace->target().known()};
    for (std::size_t i = 0; i < pace->num_drawers(); ++i) {
        all.push_back(pace->draft(i).known());
    }
    return all;
}

void restore_costs(Speculator & self, const Costs & seconds) {
    Pace * pace = self.pace();
    for (std::size_t i = 0; pace != nullptr && i < std::min(seconds.size(), pace->num_drawers() + 1); ++i) {
        (i == 0 ? pace->target() : pace->draft(i - 1)).restore(seconds[i]);
    }
}

void bind_results(py::module_ & module) {
    ResultStruct<Round>(module, "Round", "The tokens that one round has emitted.")
        .field("tokens", &Round::tokens, "Accepted drafts, then one correction, bonus or plain token.")
        .field("num_drafted", &Round::num_drafted, "How many tokens were drafted.")
        .field("num_accepted", &Round::num_accepted, "How many drafted tokens were accepted.");
}

void bind_drafters(py::module_ & module) {
    DrafterClass drafter(module, "Drafter", "Drafts for one text: a static method for each kind.");
#define SPECLLAMA_BIND(name, origin, summary) bind_##name##_drafter(module, drafter);
    SPECLLAMA_DRAFTERS(SPECLLAMA_BIND)
#undef SPECLLAMA_BIND
}

}  // namespace

void bind_speculator(py::module_ & module) {
    bind_results(module);
    bind_drafters(module);
    py::class_<Speculator>(module, "Speculator", "The loop over a target and its drafters.")
        .def(py::init(&make_speculator), py::arg("target"),
             py::arg("drafters") = std::vector<std::shared_ptr<Drafter>>(), py::arg("scheduler") = nullptr)
        .def("begin", &begin, py::arg("prompt"), py::kw_only(), py::arg("sampler"), py::arg("rule"),
             py::arg("num_draft_tokens"), py::arg("seed"), py::arg("paced") = false,
             py::arg("max_tokens") = static_cast<std::size_t>(-1), py::arg("logits_processor") = py::none(),
             py::arg("constraint") = nullptr, py::arg("poll") = py::none(), py::arg("keeps_logits") = false,
             py::arg("corpus") = py::none(), py::arg("num_likely") = 0)
        .def("memories",
             [](Speculator & self) {
                 std::vector<std::pair<std::shared_ptr<Sequence>, py::array_t<int32_t>>> all;
                 for (const DrafterMemory & memory : self.memories()) {
                     all.emplace_back(memory.sequence, to_array(memory.tokens));
                 }
                 return all;
             })
        .def(
            "refilled",
            [](Speculator & self, std::size_t num_from_ram, std::size_t num_from_disk) {
                without_gil([&] { self.refilled(num_from_ram, num_from_disk); });
            },
            py::arg("num_from_ram"), py::arg("num_from_disk"))
        .def("prefill", [](Speculator & self) { return without_gil([&] { return self.prefill(); }); })
        .def(
            "step",
            [](Speculator & self, std::size_t max_tokens) {
                return without_gil([&] { return self.step(max_tokens); });
            },
            py::arg("max_tokens"))
        .def_property_readonly("round_is_open", &Speculator::round_is_open)
        .def("decode_pending", [](Speculator & self) { without_gil([&] { self.decode_pending(); }); })
        .def("logits", &logits, py::arg("i"))
        .def("take_examples", &take_examples,
             "What a head can learn from the rounds since the last call: positions [n], states [n, n_embd], ids [n, k] "
             "of the likeliest next tokens, and their probabilities [n, k].")
        .def_property_readonly("num_examples", &Speculator::num_examples)
        .def("sources", &sources)
        .def("acceptance_probability", &Speculator::acceptance_probability, py::arg("i"))
        .def("rewind", &Speculator::rewind, py::arg("count"))
        .def(
            "extend", [](Speculator & self, const Tokens & tokens) { self.extend(to_vector(tokens)); },
            py::arg("tokens"))
        .def("finish", &Speculator::finish, py::arg("count"), py::arg("num_given") = 0, ReleaseGil())
        .def("history", [](const Speculator & self) { return to_array(self.history()); })
        .def_property_readonly("costs", &costs,
                               "Seconds of a batch of n tokens, by n, as far as they are known: of the target, then "
                               "of each draft.")
        .def("restore_costs", &restore_costs, py::arg("seconds"))
        .def_property_readonly("counters", [](const Speculator & self) { return self.counters(); })
        .def_property_readonly("drafting_stopped", &Speculator::drafting_stopped);
}

}  // namespace specllama
