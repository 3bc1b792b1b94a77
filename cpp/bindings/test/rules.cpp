// The acceptance rules, with random numbers that the test gives, so that the test can enumerate every outcome.
#include <pybind11/stl.h>

#include <stdexcept>

#include "bindings/result_struct.hpp"
#include "bindings/test/parts.hpp"
#include "math/rules/block.hpp"
#include "math/rules/coupled.hpp"
#include "math/rules/rejection.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Distributions = std::vector<Distribution>;
using Draft = std::vector<int32_t>;

void require_sizes(const Distributions & p, const Distributions * q, const Draft & draft) {
    if (p.size() != draft.size() + 1 || (q != nullptr && q->size() != draft.size())) {
        throw std::invalid_argument("gamma drafts need gamma+1 target distributions and gamma draft distributions");
    }
}

TargetAt in_list(const Distributions & p) {
    return [&p](std::size_t i) -> const Distribution & { return p.at(i); };
}

template <typename VerifyRule>
auto with_uniforms(VerifyRule rule) {
    return [rule](const Distributions & p, const Distributions & q, const Draft & draft,
                  const std::vector<double> & accept, double next) {
        require_sizes(p, &q, draft);
        if (accept.size() != draft.size()) {
            throw std::invalid_argument("gamma drafts need gamma uniforms");
        }
        return rule(in_list(p), q, draft, Uniforms{accept, next});
    };
}

Verdict coupled(const Distributions & p, const Draft & draft, std::uint64_t seed, std::uint64_t position) {
    require_sizes(p, nullptr, draft);
    return verify_coupled(in_list(p), draft, seed, position);
}

std::vector<double> each_acceptance(const Distributions & p, const Distributions & q, const Draft & draft) {
    require_sizes(p, &q, draft);
    std::vector<double> acceptance;
    acceptance.reserve(draft.size());
    for (std::size_t i = 0; i < draft.size(); ++i) {
        acceptance.push_back(rejection_acceptance(p[i], q[i], draft[i]));
    }
    return acceptance;
}

BlockAcceptance acceptance_of_block(const Distributions & p, const Distributions & q, const Draft & draft) {
    require_sizes(p, &q, draft);
    return block_acceptance(in_list(p), q, draft);
}

}  // namespace

void bind_rules_for_tests(py::module_ & module) {
    ResultStruct<Verdict>(module, "Verdict", "The decision about a draft.")
        .field("num_accepted", &Verdict::num_accepted, "How many drafted tokens are accepted.")
        .field("next", &Verdict::next, "The token after the accepted ones.");
    ResultStruct<BlockAcceptance>(module, "BlockAcceptance", "What block verification computes.")
        .field("h", &BlockAcceptance::h, "[gamma]: h_1 to h_gamma.")
        .field("w", &BlockAcceptance::w, "[gamma+1]: w_0 to w_gamma.");
    module.def("residual", &residual, py::arg("p"), py::arg("q"), py::arg("weight"));
    module.def("rejection_acceptance", &each_acceptance, py::arg("p"), py::arg("q"), py::arg("draft"));
    module.def("block_acceptance", &acceptance_of_block, py::arg("p"), py::arg("q"), py::arg("draft"));
    module.def("verify_rejection", with_uniforms(&verify_rejection), py::arg("p"), py::arg("q"), py::arg("draft"),
               py::arg("accept"), py::arg("next"));
    module.def("verify_block", with_uniforms(&verify_block), py::arg("p"), py::arg("q"), py::arg("draft"),
               py::arg("accept"), py::arg("next"));
    module.def("verify_coupled", &coupled, py::arg("p"), py::arg("draft"), py::arg("seed"), py::arg("position"));
}

}  // namespace specllama
