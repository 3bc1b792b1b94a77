// What drafters are made of: bound so that the tests can compare it with its definition.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "suffix_index.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

void append(SuffixIndex & self, const py::array_t<int32_t, py::array::c_style | py::array::forcecast> & tokens) {
    for (py::ssize_t i = 0; i < tokens.size(); ++i) {
        self.append(tokens.data()[i]);
    }
}

// (index of the token that followed, length, occurrences that went on the same way, and otherwise)
py::tuple longest(const SuffixIndex & self) {
    const SuffixIndex::Match match = self.longest();
    return py::make_tuple(match.next, match.length, match.num_same, match.num_other);
}

}  // namespace

void bind_drafting(py::module_ & module) {
    py::class_<SuffixIndex>(module, "SuffixIndex")
        .def(py::init<>())
        .def("append", &append, py::arg("tokens"))
        .def("truncate", &SuffixIndex::truncate, py::arg("count"))
        .def("longest", &longest)
        .def("__len__", &SuffixIndex::size)
        .def_property_readonly("memory", &SuffixIndex::memory);
}

}  // namespace specllama
