// All acceptance rules, by name.
#include "math/rules/table.hpp"

#include <stdexcept>

namespace specllama {

std::vector<const Rule *> all_rules() {
#define SPECLLAMA_ADDRESS(name) &name##_rule(),
    return {SPECLLAMA_RULES(SPECLLAMA_ADDRESS)};
#undef SPECLLAMA_ADDRESS
}

const Rule & rule_by_name(const std::string & name) {
    std::string names;
    for (const Rule * rule : all_rules()) {
        if (name == rule->about().name) {
            return *rule;
        }
        names += std::string(names.empty() ? "'" : ", '") + rule->about().name + "'";
    }
    throw std::invalid_argument("unknown rule '" + name + "': use one of " + names);
}

}  // namespace specllama
