// Many texts at once.
#include "loop/scheduler.hpp"

#include <pybind11/stl.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/costs.hpp"
#include "bindings/result_struct.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// Texts may need Python's lock to come to an end.
void destroy(Scheduler * scheduler) {
    const py::gil_scoped_release release;
    delete scheduler;  // NOLINT(cppcoreguidelines-owning-memory)
}

std::shared_ptr<Scheduler> make_scheduler(std::shared_ptr<Decoder> target, std::shared_ptr<Decoder> draft) {
    return {new Scheduler(std::move(target), std::move(draft)), &destroy};
}

Costs costs(Scheduler & self) { return {self.costs(0).known(), self.costs(1).known()}; }

void restore_costs(Scheduler & self, const Curve & target, const Curve & draft) {
    self.restore_costs(0, target);
    self.restore_costs(1, draft);
}

}  // namespace

void bind_scheduler(py::module_ & module) {
    using Counters = Scheduler::Counters;
    ResultStruct<Counters>(module, "SchedulerCounters", "What has been decoded for several texts together.")
        .field("num_batches", &Counters::num_batches, "Batches of the target.")
        .field("num_tokens", &Counters::num_tokens, "Tokens in them.")
        .field("most_texts", &Counters::most_texts, "The most texts in one of them.")
        .field("num_pauses", &Counters::num_pauses, "How often a text gave its cells to others, as the cache was full.")
        .field("decode_seconds", &Counters::decode_seconds, "In decodes, the draft's included.")
        .field("waiting_seconds", &Counters::waiting_seconds, "In which a decode waited for texts that were at work.");
    py::class_<Scheduler, std::shared_ptr<Scheduler>>(module, "Scheduler",
                                                      "Decodes what several loops want in one batch.")
        .def(py::init(&make_scheduler), py::arg("target"), py::arg("draft") = nullptr)
        .def_property_readonly("counters", &Scheduler::counters)
        .def_property_readonly("costs", &costs)
        .def("restore_costs", &restore_costs, py::arg("target"), py::arg("draft"))
        .def("close", &Scheduler::close, ReleaseGil());
}

}  // namespace specllama
