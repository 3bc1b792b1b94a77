// The scheduler: many texts at once.
#include "loop/scheduler.hpp"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/result_struct.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// Destroys a scheduler. Its texts may need Python's lock to end. When the interpreter is ending, they would not get the
// lock, so the scheduler is not destroyed then.
void destroy(Scheduler * scheduler) {
    if (python_ends()) {
        return;
    }
    const GilReleased released;
    delete scheduler;  // NOLINT(cppcoreguidelines-owning-memory)
}

std::shared_ptr<Scheduler> make_scheduler(const std::shared_ptr<Decoder> & target,
                                          const std::vector<std::shared_ptr<Decoder>> & drafts) {
    return {new Scheduler(target, drafts), &destroy};
}

Costs costs_of_batches(Scheduler & self) {
    Costs all;
    for (const CostModel & each : self.costs()) {
        all.push_back(each.known());
    }
    return all;
}

}  // namespace

void bind_scheduler(py::module_ & module) {
    using Counters = Scheduler::Counters;
    ResultStruct<Counters>(module, "SchedulerCounters", "What a scheduler has decoded for its texts.")
        .field("num_batches", &Counters::num_batches, "Number of batches of the target.")
        .field("num_tokens", &Counters::num_tokens, "Number of tokens in the target's batches.")
        .field("most_texts", &Counters::most_texts, "The most texts in one batch of the target.")
        .field("num_pauses", &Counters::num_pauses,
               "How often a text gave its cells to other texts because the cache was full.")
        .field("decode_seconds", &Counters::decode_seconds, "Seconds in decodes of the target and the drafts.")
        .field("waiting_seconds", &Counters::waiting_seconds,
               "Seconds in which a decode waited for texts that were at work.");
    py::class_<Scheduler, std::shared_ptr<Scheduler>>(module, "Scheduler",
                                                      "Decodes in one batch what several loops wait for.")
        .def(py::init(&make_scheduler), py::arg("target"), py::arg("drafts") = std::vector<std::shared_ptr<Decoder>>())
        .def_property_readonly("counters", &Scheduler::counters)
        .def_property_readonly("costs", &costs_of_batches)
        .def("restore_costs", &Scheduler::restore_costs, py::arg("seconds"))
        .def("close", &Scheduler::close, ReleaseGil());
}

}  // namespace specllama
