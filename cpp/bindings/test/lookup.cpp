// The suffix index, which finds where the end of a text has occurred before.
#include "bindings/arrays.hpp"
#include "bindings/result_struct.hpp"
#include "bindings/test/parts.hpp"
#include "pacing/suffix_index.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

void append(SuffixIndex & self, const Tokens & tokens) {
    for (py::ssize_t i = 0; i < tokens.size(); ++i) {
        self.append(tokens.data()[i]);
    }
}

}  // namespace

void bind_lookup_for_tests(py::module_ & module) {
    using Match = SuffixIndex::Match;
    ResultStruct<Match>(module, "Match", "An earlier occurrence of the end of a text.")
        .field("next", &Match::next, "Index of the token that followed the occurrence.")
        .field("length", &Match::length, "How many tokens match; 0 if there is no match.")
        .field("num_other", &Match::num_other, "How many other occurrences were followed by another token.");
    py::class_<SuffixIndex>(module, "SuffixIndex", "Finds the longest earlier occurrence of the end of a text.")
        .def(py::init<>())
        .def("append", &append, py::arg("tokens"))
        .def("truncate", &SuffixIndex::truncate, py::arg("count"))
        .def("longest", &SuffixIndex::longest)
        .def("__len__", &SuffixIndex::size)
        .def_property_readonly("memory", &SuffixIndex::memory);
}

}  // namespace specllama
