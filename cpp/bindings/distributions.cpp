// The distributions and log-probabilities that are made of logits.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cmath>
#include <memory>
#include <stdexcept>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"
#include "math/logits_scan.hpp"
#include "math/sampler_chain.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

Distribution make_distribution(std::vector<int32_t> ids, std::vector<double> probs) {
    if (probs.empty() || (!ids.empty() && ids.size() != probs.size())) {
        throw std::invalid_argument("a distribution needs as many ids as probabilities, or no ids (dense): got " +
                                    std::to_string(ids.size()) + " and " + std::to_string(probs.size()));
    }
    return {std::move(ids), std::move(probs)};
}

py::array_t<int32_t> ids_of(const Distribution & self) {
    py::array_t<int32_t> ids(static_cast<py::ssize_t>(self.size()));
    for (std::size_t i = 0; i < self.size(); ++i) {
        ids.mutable_at(static_cast<py::ssize_t>(i)) = self.id(i);
    }
    return ids;
}

py::array_t<double> probs_of(const Distribution & self) {
    return py::array_t<double>(static_cast<py::ssize_t>(self.size()), self.probs.data());
}

void require_vector(const Logits & logits) {
    if (logits.ndim() != 1 || logits.size() == 0) {
        throw std::invalid_argument("logits must be a vector [n_vocab], not of " + std::to_string(logits.ndim()) +
                                    " dimensions and size " + std::to_string(logits.size()));
    }
}

struct TokenLogprob {
    double logprob;
    std::vector<std::pair<int32_t, double>> top;  // by descending probability
};

TokenLogprob logprobs(const Logits & logits, std::size_t token, std::size_t num_top) {
    require_vector(logits);
    const auto n = static_cast<std::size_t>(logits.size());
    const float * values = logits.data();
    if (token >= n) {
        throw std::invalid_argument("token " + std::to_string(token) +
                                    " is out of range: there are logits of the tokens 0 to " + std::to_string(n - 1));
    }
    std::vector<Candidate> best;
    if (num_top > 0) {
        select_top_k(values, n, num_top, best);
    }
    const float top = largest(values, n);
    const double log_sum = top + std::log(sum_exp(values, n, top, 1.0F));
    TokenLogprob result{values[token] - log_sum, {}};
    for (const Candidate & candidate : best) {
        result.top.emplace_back(candidate.id, candidate.logit - log_sum);
    }
    return result;
}

py::typing::Dict<py::int_, py::float_> top_of(const TokenLogprob & self) {
    py::typing::Dict<py::int_, py::float_> by_id;
    for (const auto & [token, logprob] : self.top) {
        by_id[py::int_(token)] = logprob;
    }
    return by_id;
}

Distribution apply_chain(const Logits & logits, const SamplerParams & params, const std::vector<int32_t> & recent,
                         std::shared_ptr<Constraint> constraint) {
    require_vector(logits);
    std::vector<float> copy(logits.data(), logits.data() + logits.size());
    Distribution out;
    SamplerChain(params, nullptr, std::move(constraint))
        .apply(copy.data(), copy.size(), recent.data(), recent.size(), out);
    return out;
}

}  // namespace

void bind_distributions(py::module_ & module) {
    ResultStruct<Distribution>(
        module, "Distribution",
        "A distribution over token ids: some ids by descending probability, or the whole vocabulary in order.")
        .field("dense", &Distribution::dense, "Whether it covers the whole vocabulary, in order.")
        .field("ids", &ids_of, "Token ids [n].")
        .field("probs", &probs_of, "The probability of each id [n].")
        .type()
        .def(py::init(&make_distribution), py::arg("ids"), py::arg("probs"));
    const py::class_<Constraint, std::shared_ptr<Constraint>> constraint(
        module, "Constraint", "Decides which tokens may follow a text, such as a grammar.");
    ResultStruct<TokenLogprob>(module, "TokenLogprob",
                               "The log-probability of a token, and those of the most probable tokens.")
        .field("logprob", &TokenLogprob::logprob, "The token's log-probability.")
        .field("top", &top_of, "The log-probabilities of the most probable tokens, by id, in descending order.");
    module.def("logprobs", &logprobs, py::arg("logits"), py::arg("token"), py::arg("num_top"),
               "Returns the log-probability of a token, and those of the `num_top` most probable tokens.");
    module.def(
        "distribution", &apply_chain, py::arg("logits"), py::arg("params"), py::arg("recent") = std::vector<int32_t>(),
        py::arg("constraint") = nullptr,
        "Returns the distribution that the sampler chain makes from logits [n_vocab] after the tokens `recent`.");
    module.def(
        "gumbel_argmax",
        [](const Distribution & dist, std::uint64_t seed, std::uint64_t position) {
            return dist.gumbel_argmax(Noise(seed, Stream::gumbel, position));
        },
        py::arg("dist"), py::arg("seed"), py::arg("position"),
        "Returns the token that the rule `coupled` draws at a position.");
}

}  // namespace specllama
