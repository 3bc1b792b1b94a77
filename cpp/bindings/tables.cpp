// The tables of all rules and drafters.
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"
#include "drafters/source.hpp"
#include "math/rules/table.hpp"

namespace py = pybind11;

namespace specllama {

void bind_tables(py::module_ & module) {
    using About = Rule::About;
    ResultStruct<About>(module, "Rule", "A line of the table of acceptance rules.")
        .field(
            "name", [](const About & self) { return self.name; }, "The rule's name, as the argument `verify` takes it.")
        .field(
            "summary", [](const About & self) { return self.summary; }, "What the rule does.")
        .field("independent_of_draft", &About::independent_of_draft,
               "Whether a seed gives one text whatever is drafted.")
        .field("decides_in_steps", &About::decides_in_steps,
               "Whether it decides position by position, and needs no p after a rejection.");
    module.def(
        "rules",
        [] {
            std::vector<About> rules;
            for (const Rule * rule : all_rules()) {
                rules.push_back(rule->about());
            }
            return rules;
        },
        "Returns all acceptance rules.");

    ResultStruct<DrafterAbout>(module, "DrafterAbout", "A line of the table of drafters.")
        .field(
            "name", [](const DrafterAbout & self) { return self.name; }, "The drafter's name, also in the statistics.")
        .field(
            "origin", [](const DrafterAbout & self) { return self.origin; }, "The origin of its tokens that users see.")
        .field("summary", [](const DrafterAbout & self) { return self.summary; }, "What the drafter drafts.");
    module.def(
        "drafters", [] { return std::vector<DrafterAbout>(drafters.begin(), drafters.end()); },
        "Returns all drafters.");
}

}  // namespace specllama
