// Distributions, noise and rules: what the tests prove, and what Python sets.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>

#include "acceptance_rules/block.hpp"
#include "acceptance_rules/coupled.hpp"
#include "acceptance_rules/rejection.hpp"
#include "acceptance_rules/table.hpp"
#include "bindings.hpp"
#include "distribution.hpp"
#include "logits_scan.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

SamplerParams make_params(float temperature, int top_k, float top_p, float min_p, float typical_p, float repeat_penalty,
                          float frequency_penalty, float presence_penalty, int penalty_last_n,
                          const std::map<int32_t, float> & logit_bias, float top_n_sigma, float xtc_probability,
                          float xtc_threshold, float dynatemp_range, float dynatemp_exponent, DryParams dry) {
    SamplerParams params;
    params.temperature = temperature;
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    params.typical_p = typical_p;
    params.repeat_penalty = repeat_penalty;
    params.frequency_penalty = frequency_penalty;
    params.presence_penalty = presence_penalty;
    params.penalty_last_n = penalty_last_n;
    params.logit_bias.assign(logit_bias.begin(), logit_bias.end());
    params.top_n_sigma = top_n_sigma;
    params.xtc_probability = xtc_probability;
    params.xtc_threshold = xtc_threshold;
    params.dynatemp_range = dynatemp_range;
    params.dynatemp_exponent = dynatemp_exponent;
    params.dry = std::move(dry);
    params.validate();
    return params;
}

Distribution make_distribution(std::vector<int32_t> ids, std::vector<double> probs) {
    if (probs.empty() || (!ids.empty() && ids.size() != probs.size())) {
        throw std::invalid_argument("a distribution needs as many ids as probabilities, or no ids (dense): got " +
                                    std::to_string(ids.size()) + " and " + std::to_string(probs.size()));
    }
    return {std::move(ids), std::move(probs)};
}

// A constraint that is a function of the caller's: recent tokens and candidates in, whether each is allowed out.
class CallbackConstraint final : public Constraint {
public:
    using Allows = std::function<std::vector<bool>(const std::vector<int32_t> &, const std::vector<int32_t> &)>;
    explicit CallbackConstraint(Allows allows) : allows_(std::move(allows)) {}

    void forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) override {
        std::vector<int32_t> ids;
        ids.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            ids.push_back(candidates[i].id);
        }
        const std::vector<bool> allowed = allows_({recent, recent + n_recent}, ids);
        for (std::size_t i = 0; i < count; ++i) {
            candidates[i].logit = allowed.at(i) ? candidates[i].logit : -std::numeric_limits<float>::infinity();
        }
    }

private:
    Allows allows_;
};

void require_vector(const Logits & logits) {
    if (logits.ndim() != 1 || logits.size() == 0) {
        throw std::invalid_argument("logits must be a vector [n_vocab], not of " + std::to_string(logits.ndim()) +
                                    " dimensions and size " + std::to_string(logits.size()));
    }
}

// The log-probability of a token, and those of the `num_top` most probable ones by id.
py::tuple logprobs(const Logits & logits, std::size_t token, std::size_t num_top) {
    require_vector(logits);
    const auto n = static_cast<std::size_t>(logits.size());
    const float * values = logits.data();
    if (token >= n) {
        throw std::invalid_argument("token " + std::to_string(token) + " is none of " + std::to_string(n) + " logits");
    }
    std::vector<Candidate> best;
    if (num_top > 0) {
        select_top_k(values, n, num_top, best);
    }
    const float top = largest(values, n);
    const double log_sum = top + std::log(sum_exp(values, n, top, 1.0F));
    py::dict by_id;
    for (const Candidate & candidate : best) {
        by_id[py::int_(candidate.id)] = candidate.logit - log_sum;
    }
    return py::make_tuple(values[token] - log_sum, by_id);
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

void require_sizes(const std::vector<Distribution> & p, const std::vector<Distribution> * q,
                   const std::vector<int32_t> & draft) {
    if (p.size() != draft.size() + 1 || (q != nullptr && q->size() != draft.size())) {
        throw std::invalid_argument("gamma drafts need gamma+1 target distributions and gamma draft distributions");
    }
}

TargetAt in_list(const std::vector<Distribution> & p) {
    return [&p](std::size_t i) -> const Distribution & { return p.at(i); };
}

template <typename VerifyRule>
auto with_uniforms(VerifyRule rule) {
    return [rule](const std::vector<Distribution> & p, const std::vector<Distribution> & q,
                  const std::vector<int32_t> & draft, const std::vector<double> & accept, double next) {
        require_sizes(p, &q, draft);
        if (accept.size() != draft.size()) {
            throw std::invalid_argument("gamma drafts need gamma uniforms");
        }
        const Verdict verdict = rule(in_list(p), q, draft, Uniforms{accept, next});
        return py::make_tuple(verdict.num_accepted, verdict.next);
    };
}

// Each of them: its first token, and the others.
SequenceBreakers make_breakers(const std::vector<std::vector<int32_t>> & sequences) {
    SequenceBreakers breakers;
    for (const std::vector<int32_t> & sequence : sequences) {
        if (sequence.empty()) {
            throw std::invalid_argument("a sequence breaker has no tokens");
        }
        breakers.add(sequence.front(), {sequence.begin() + 1, sequence.end()});
    }
    return breakers;
}

void bind_params(py::module_ & module) {
    py::class_<SequenceBreakers, std::shared_ptr<SequenceBreakers>>(module, "SequenceBreakers")
        .def(py::init(&make_breakers), py::arg("sequences"));
    py::class_<DryParams>(module, "DryParams")
        .def(py::init([](float multiplier, float base, int allowed_length, int penalty_last_n,
                         std::shared_ptr<SequenceBreakers> breakers, std::vector<int32_t> prompt) {
                 return DryParams{multiplier,       base, allowed_length, penalty_last_n, std::move(breakers),
                                  std::move(prompt)};
             }),
             py::kw_only(), py::arg("multiplier") = 0.0F, py::arg("base") = 1.75F, py::arg("allowed_length") = 2,
             py::arg("penalty_last_n") = -1, py::arg("breakers") = nullptr, py::arg("prompt") = std::vector<int32_t>());
    py::class_<SamplerParams>(module, "SamplerParams")
        .def(py::init(&make_params), py::kw_only(), py::arg("temperature") = 0.8F, py::arg("top_k") = 40,
             py::arg("top_p") = 0.95F, py::arg("min_p") = 0.05F, py::arg("typical_p") = 1.0F,
             py::arg("repeat_penalty") = 1.0F, py::arg("frequency_penalty") = 0.0F, py::arg("presence_penalty") = 0.0F,
             py::arg("penalty_last_n") = 64, py::arg("logit_bias") = std::map<int32_t, float>(),
             py::arg("top_n_sigma") = -1.0F, py::arg("xtc_probability") = 0.0F, py::arg("xtc_threshold") = 0.1F,
             py::arg("dynatemp_range") = 0.0F, py::arg("dynatemp_exponent") = 1.0F, py::arg("dry") = DryParams());
}

void bind_distributions(py::module_ & module) {
    py::class_<Distribution>(module, "Distribution")
        .def(py::init(&make_distribution), py::arg("ids"), py::arg("probs"))
        .def_property_readonly("dense", &Distribution::dense)
        .def_property_readonly("ids",
                               [](const Distribution & self) {
                                   py::array_t<int32_t> ids(static_cast<py::ssize_t>(self.size()));
                                   for (std::size_t i = 0; i < self.size(); ++i) {
                                       ids.mutable_at(static_cast<py::ssize_t>(i)) = self.id(i);
                                   }
                                   return ids;
                               })
        .def_property_readonly("probs", [](const Distribution & self) {
            return py::array_t<double>(static_cast<py::ssize_t>(self.size()), self.probs.data());
        });
    const py::class_<Constraint, std::shared_ptr<Constraint>> constraint(module, "Constraint");
    py::class_<CallbackConstraint, Constraint, std::shared_ptr<CallbackConstraint>>(module, "CallbackConstraint")
        .def(py::init<CallbackConstraint::Allows>(), py::arg("allows"));
    module.def("logprobs", &logprobs, py::arg("logits"), py::arg("token"), py::arg("num_top"));
    module.def("distribution", &apply_chain, py::arg("logits"), py::arg("params"),
               py::arg("recent") = std::vector<int32_t>(), py::arg("constraint") = nullptr);
    module.def("overlap", &overlap, py::arg("p"), py::arg("q"));
    module.def(
        "sample", [](const Distribution & dist, double u) { return dist.sample(u); }, py::arg("dist"), py::arg("u"));
}

void bind_noise(py::module_ & module) {
    module.def(
        "uniform",
        [](std::uint64_t seed, std::uint64_t stream, std::uint64_t position, std::uint64_t token) {
            return Noise(seed, static_cast<Stream>(stream), position).uniform(token);
        },
        py::arg("seed"), py::arg("stream"), py::arg("position"), py::arg("token"));
    module.def(
        "gumbel",
        [](std::uint64_t seed, std::uint64_t position, std::uint64_t token) {
            return Noise(seed, Stream::gumbel, position).gumbel(token);
        },
        py::arg("seed"), py::arg("position"), py::arg("token"));
    module.def(
        "gumbel_argmax",
        [](const Distribution & dist, std::uint64_t seed, std::uint64_t position) {
            return dist.gumbel_argmax(Noise(seed, Stream::gumbel, position));
        },
        py::arg("dist"), py::arg("seed"), py::arg("position"));
}

void bind_table(py::module_ & module) {
    py::class_<Rule::About>(module, "Rule", "An acceptance rule, as the table of rules has it.")
        .def_property_readonly("name", [](const Rule::About & self) { return self.name; })
        .def_property_readonly("summary", [](const Rule::About & self) { return self.summary; })
        .def_readonly("independent_of_draft", &Rule::About::independent_of_draft)
        .def_readonly("decides_in_steps", &Rule::About::decides_in_steps)
        .def("__repr__", [](const Rule::About & self) { return std::string("Rule(") + self.name + ")"; });
    module.def("rules", [] {
        std::vector<Rule::About> rules;
        for (const Rule * rule : all_rules()) {
            rules.push_back(rule->about());
        }
        return rules;
    });
}

void bind_rules(py::module_ & module) {
    module.def("residual", &residual, py::arg("p"), py::arg("q"), py::arg("weight"));
    module.def(
        "rejection_acceptance",
        [](const std::vector<Distribution> & p, const std::vector<Distribution> & q,
           const std::vector<int32_t> & draft) {
            require_sizes(p, &q, draft);
            std::vector<double> acceptance;
            acceptance.reserve(draft.size());
            for (std::size_t i = 0; i < draft.size(); ++i) {
                acceptance.push_back(rejection_acceptance(p[i], q[i], draft[i]));
            }
            return acceptance;
        },
        py::arg("p"), py::arg("q"), py::arg("draft"));
    module.def(
        "block_acceptance",
        [](const std::vector<Distribution> & p, const std::vector<Distribution> & q,
           const std::vector<int32_t> & draft) {
            require_sizes(p, &q, draft);
            const BlockAcceptance acceptance = block_acceptance(in_list(p), q, draft);
            return py::make_tuple(acceptance.h, acceptance.w);
        },
        py::arg("p"), py::arg("q"), py::arg("draft"));
    module.def("verify_rejection", with_uniforms(&verify_rejection), py::arg("p"), py::arg("q"), py::arg("draft"),
               py::arg("accept"), py::arg("next"));
    module.def("verify_block", with_uniforms(&verify_block), py::arg("p"), py::arg("q"), py::arg("draft"),
               py::arg("accept"), py::arg("next"));
    module.def(
        "verify_coupled",
        [](const std::vector<Distribution> & p, const std::vector<int32_t> & draft, std::uint64_t seed,
           std::uint64_t position) {
            require_sizes(p, nullptr, draft);
            const Verdict verdict = verify_coupled(in_list(p), draft, seed, position);
            return py::make_tuple(verdict.num_accepted, verdict.next);
        },
        py::arg("p"), py::arg("draft"), py::arg("seed"), py::arg("position"));
}

}  // namespace

void bind_mathematics(py::module_ & module) {
    bind_params(module);
    bind_distributions(module);
    bind_noise(module);
    bind_table(module);
    bind_rules(module);
}

}  // namespace specllama
