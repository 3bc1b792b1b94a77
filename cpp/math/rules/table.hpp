// All acceptance rules, by name. A new rule needs a file of its own, and a line here.
#pragma once

#include <string>
#include <vector>

#include "math/rules/rule.hpp"

// The names of the rules, in the order in which users see them. A function `NAME_rule()` returns the rule NAME.
#define SPECLLAMA_RULES(X) \
    X(rejection)           \
    X(block)               \
    X(coupled)

namespace specllama {

#define SPECLLAMA_DECLARE(name) const Rule & name##_rule();
SPECLLAMA_RULES(SPECLLAMA_DECLARE)
#undef SPECLLAMA_DECLARE

std::vector<const Rule *> all_rules();

// Throws std::invalid_argument, which lists all rules, for an unknown name.
const Rule & rule_by_name(const std::string & name);

}  // namespace specllama
