// Many texts at once.
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings.hpp"
#include "scheduler.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Costs = std::map<std::size_t, double>;

std::string counters_repr(const Scheduler::Counters & self) {
    return "SchedulerCounters(num_batches=" + std::to_string(self.num_batches) +
           ", num_tokens=" + std::to_string(self.num_tokens) + ", most_texts=" + std::to_string(self.most_texts) + ")";
}

}  // namespace

void bind_scheduler(py::module_ & module) {
    py::class_<Scheduler::Counters>(module, "SchedulerCounters", "What has been decoded for several texts together.")
        .def_readonly("num_batches", &Scheduler::Counters::num_batches, "Batches of the target.")
        .def_readonly("num_tokens", &Scheduler::Counters::num_tokens, "Tokens in them.")
        .def_readonly("most_texts", &Scheduler::Counters::most_texts, "The most texts in one of them.")
        .def_readonly("decode_seconds", &Scheduler::Counters::decode_seconds, "In decodes, the draft's included.")
        .def_readonly("waiting_seconds", &Scheduler::Counters::waiting_seconds,
                      "In which a decode waited for texts that were at work.")
        .def("__repr__", &counters_repr);
    py::class_<Scheduler, std::shared_ptr<Scheduler>>(module, "Scheduler")
        .def(py::init<std::shared_ptr<Decoder>, std::shared_ptr<Decoder>>(), py::arg("target"),
             py::arg("draft") = nullptr)
        .def_property_readonly("counters", &Scheduler::counters)
        .def_property_readonly("num_generating", &Scheduler::num_generating)
        .def_property_readonly("costs",
                               [](Scheduler & self) {
                                   return std::make_pair(self.costs(0).known(), self.costs(1).known());
                               })
        .def(
            "restore_costs",
            [](Scheduler & self, const Costs & target, const Costs & draft) {
                self.restore_costs(0, target);
                self.restore_costs(1, draft);
            },
            py::arg("target"), py::arg("draft"))
        .def("close", &Scheduler::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace specllama
