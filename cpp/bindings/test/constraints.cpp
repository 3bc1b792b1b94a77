// Constraints and sequence breakers that a test defines.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bindings/test/parts.hpp"
#include "math/constraint.hpp"
#include "math/sequence_breakers.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// A constraint that asks a function of the test which candidates are allowed: (recent, ids) -> a bool for each id.
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

// Makes DRY's sequence breakers. Each sequence must have at least one token.
std::shared_ptr<SequenceBreakers> make_breakers(const std::vector<std::vector<int32_t>> & sequences) {
    std::map<int32_t, SequenceBreakers::Rests> rests;  // the tokens after the first, by the first token
    for (const std::vector<int32_t> & sequence : sequences) {
        if (sequence.empty()) {
            throw std::invalid_argument("a sequence breaker has no tokens");
        }
        rests[sequence.front()].emplace_back(sequence.begin() + 1, sequence.end());
    }
    auto breakers = std::make_shared<SequenceBreakers>();
    for (const auto & [first, all] : rests) {
        breakers->put(first, std::make_shared<const SequenceBreakers::Rests>(all));
    }
    return breakers;
}

}  // namespace

void bind_constraints_for_tests(py::module_ & module) {
    py::class_<CallbackConstraint, Constraint, std::shared_ptr<CallbackConstraint>>(
        module, "CallbackConstraint",
        "Allows what a function allows: function(recent, candidates) returns a bool for each candidate.")
        .def(py::init<CallbackConstraint::Allows>(), py::arg("allows"));
    module.def("sequence_breakers", &make_breakers, py::arg("sequences"),
               "Returns DRY's breakers for sequences of tokens.");
}

}  // namespace specllama
