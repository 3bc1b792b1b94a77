// The counters of a generation.
#include "loop/counters.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <string>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using ByName = std::map<std::string, std::size_t>;

ByName idle_rounds(const Counters & self) {
    ByName result;
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

py::typing::Dict<py::str, py::float_> numbers(const Counters & self) {
    py::typing::Dict<py::str, py::float_> result;
#define SPECLLAMA_NUMBER(type, name, summary) result[#name] = self.name;
    SPECLLAMA_COUNTERS(SPECLLAMA_NUMBER)
#undef SPECLLAMA_NUMBER
#define SPECLLAMA_NUMBER(type, name, summary) result[#name] = self.pace.name;
    SPECLLAMA_PACE_COUNTERS(SPECLLAMA_NUMBER)
#undef SPECLLAMA_NUMBER
    return result;
}

std::map<std::string, std::vector<std::size_t>> lists(const Counters & self) {
    return {
#define SPECLLAMA_ENTRY(name, summary) {#name, self.name},
        SPECLLAMA_LISTS(SPECLLAMA_ENTRY)
#undef SPECLLAMA_ENTRY
    };
}

}  // namespace

void bind_counters(py::module_ & module) {
    ResultStruct<SourceCounters>(module, "SourceCounters", "What one way of drafting has contributed.")
        .field("num_drafts", &SourceCounters::num_drafts, "Rounds to which it contributed tokens.")
        .field("num_draft_tokens", &SourceCounters::num_draft_tokens, "Tokens that it drafted.")
        .field("num_accepted_tokens", &SourceCounters::num_accepted_tokens,
               "Tokens that it drafted and the target accepted.");

    ResultStruct<Counters> counters(module, "Counters", "The counters of a generation (cpp/loop/counters.hpp).");
#define SPECLLAMA_BIND(type, name, summary) counters.field(#name, &Counters::name, summary);
    SPECLLAMA_COUNTERS(SPECLLAMA_BIND)
#undef SPECLLAMA_BIND
#define SPECLLAMA_BIND(type, name, summary) \
    counters.field(#name, [](const Counters & self) { return self.pace.name; }, summary);
    SPECLLAMA_PACE_COUNTERS(SPECLLAMA_BIND)
#undef SPECLLAMA_BIND
#define SPECLLAMA_BIND(name, summary) counters.field(#name, &Counters::name, summary);
    SPECLLAMA_LISTS(SPECLLAMA_BIND)
#undef SPECLLAMA_BIND
    counters.field("num_idle_rounds", &idle_rounds, "Rounds in which the pace drafted nothing, by reason.")
        .field("per_source", &per_source, "What each way of drafting has contributed, by its name.")
        .type()
        .def("numbers", &numbers, "All counters that are single numbers, by name.")
        .def("lists", &lists, "All lists of numbers, by name.");
}

}  // namespace specllama
