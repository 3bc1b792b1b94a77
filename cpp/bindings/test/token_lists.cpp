// The sampler chain over the logits of listed tokens alone, and a check that no other logits are computed.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings/test/parts.hpp"
#include "llama/decoder.hpp"
#include "math/sampler_chain.hpp"
#include "math/token_list.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

// The distribution over the listed tokens. logits: [n], where n may be smaller than the list's vocabulary.
Distribution listed_distribution(const Logits & logits, const TokenList & listed, const SamplerParams & params,
                                 const std::vector<int32_t> & recent, std::shared_ptr<Constraint> constraint) {
    std::vector<float> gathered;
    listed.gather(logits.data(), static_cast<std::size_t>(logits.size()), gathered);
    Distribution out;
    SamplerChain(params, nullptr, std::move(constraint))
        .apply(listed, gathered.data(), gathered.size(), recent.data(), recent.size(), out);
    return out;
}

const char * skipping(const Decoder & decoder) {
    switch (decoder.skipping()) {
        case Skipping::yes:
            return "yes";
        case Skipping::no:
            return "no";
        case Skipping::unknown:
            break;
    }
    return "unknown";
}

}  // namespace

void bind_token_lists_for_tests(py::module_ & module) {
    module.def(
        "listed_distribution", &listed_distribution, py::arg("logits"), py::arg("listed"), py::arg("params"),
        py::arg("recent") = std::vector<int32_t>(), py::arg("constraint") = nullptr,
        "Returns the distribution that the sampler chain makes from the listed tokens' logits. logits: all [n].");
    module.def("skipping", &skipping, py::arg("decoder"),
               "Returns whether only wanted logits are computed: yes, no or unknown.");
}

}  // namespace specllama
