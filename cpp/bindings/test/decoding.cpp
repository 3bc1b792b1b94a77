// Decodes several sequences in one batch, for tests.
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/python_calls.hpp"
#include "bindings/test/parts.hpp"
#include "llama/sequence.hpp"
#include "loop/scheduler.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

struct Part {
    std::shared_ptr<Sequence> sequence;
    std::vector<int32_t> tokens;
    std::size_t first_output;
};

void decode_together(const std::vector<Part> & parts) {
    std::vector<Sequence::Addition> additions;
    additions.reserve(parts.size());
    for (const Part & part : parts) {
        additions.push_back({{part.tokens.data(), part.tokens.size(), part.first_output}, part.sequence.get()});
    }
    const Decoder::Use in_use(parts.at(0).sequence->decoder());
    Sequence::decode_together(additions.data(), additions.size());
}

}  // namespace

void bind_decoding_for_tests(py::module_ & module) {
    py::class_<Part>(module, "Part", "Tokens to be decoded after those that a sequence holds.")
        .def(py::init([](std::shared_ptr<Sequence> sequence, const Tokens & tokens, std::size_t first_output) {
                 return Part{std::move(sequence), to_vector(tokens), first_output};
             }),
             py::arg("sequence"), py::arg("tokens"), py::arg("first_output"));
    module.def("decode_together", &decode_together, py::arg("parts"), ReleaseGil(),
               "Decodes the parts in one batch, with logits from each part's first_output on.");
    module.def("num_generating", &Scheduler::num_generating, py::arg("scheduler"),
               "Returns how many texts are in their rounds now.");
    module.def("num_drawing", &Scheduler::num_drawing, py::arg("scheduler"),
               "Returns how many texts take part in the draft's batches now.");
}

}  // namespace specllama
