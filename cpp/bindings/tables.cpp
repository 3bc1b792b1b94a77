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
    ResultStruct<About>(module, "Rule", "An acceptance rule, as the table of rules has it.")
        .field(
            "name", [](const About & self) { return self.name; }, "What `verify` calls it.")
        .field(
            "summary", [](const About & self) { return self.summary; }, "What it does.")
        .field("independent_of_draft", &About::independent_of_draft,
               "For a seed, the text is the same whatever is drafted.")
        .field("decides_in_steps", &About::decides_in_steps,
               "Position by position, without looking at p behind a rejection.");
    module.def(
        "rules",
        [] {
            std::vector<About> rules;
            for (const Rule * rule : all_rules()) {
                rules.push_back(rule->about());
            }
            return rules;
        },
        "All acceptance rules.");

    ResultStruct<DrafterAbout>(module, "Drafter", "A way of drafting, as the table of drafters has it.")
        .field(
            "name", [](const DrafterAbout & self) { return self.name; }, "That of its tokens in the statistics.")
        .field(
            "origin", [](const DrafterAbout & self) { return self.origin; }, "The origin that users see of its tokens.")
        .field(
            "needs", [](const DrafterAbout & self) { return self.needs; },
            "What it is made of: text, model, function or grammar.")
        .field("summary", [](const DrafterAbout & self) { return self.summary; }, "What it drafts.");
    module.def("drafters", [] { return std::vector<DrafterAbout>(drafters.begin(), drafters.end()); }, "All drafters.");
}

}  // namespace specllama
