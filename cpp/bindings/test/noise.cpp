// Random numbers, and tokens that are drawn with them.
#include "math/random.hpp"

#include <cmath>

#include "bindings/test/parts.hpp"
#include "math/distribution.hpp"

namespace py = pybind11;

namespace specllama {

void bind_noise_for_tests(py::module_ & module) {
    module.def(
        "uniform",
        [](std::uint64_t seed, std::uint64_t stream, std::uint64_t position, std::uint64_t token) {
            return Noise(seed, static_cast<Stream>(stream), position).uniform(token);
        },
        py::arg("seed"), py::arg("stream"), py::arg("position"), py::arg("token"));
    module.def(
        "gumbel",
        [](std::uint64_t seed, std::uint64_t position, std::uint64_t token) {
            return -std::log(Noise(seed, Stream::gumbel, position).exponential(token));
        },
        py::arg("seed"), py::arg("position"), py::arg("token"));
    module.def("overlap", &overlap, py::arg("p"), py::arg("q"));
    module.def(
        "sample", [](const Distribution & dist, double u) { return dist.sample(u); }, py::arg("dist"), py::arg("u"));
}

}  // namespace specllama
