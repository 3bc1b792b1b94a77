// All acceptance rules, by name. A new one needs a file of its own, and a line here.
#pragma once

#include <string>
#include <vector>

#include "math/rules/rule.hpp"

// Each is made by a function `NAME_rule()`, in the order in which they are listed to users.
#define SPECLLAMA_RULES(X) \
    X(rejection)           \
    X(block)               \
    X(coupled)

namespace specllama {

#define SPECLLAMA_DECLARE(name) const Rule & name##_rule();
SPECLLAMA_RULES(SPECLLAMA_DECLARE)
#undef SPECLLAMA_DECLARE

std::vector<const Rule *> all_rules();

// Throws std::invalid_argument, which names all rules, for a name that none of them has.
const Rule & rule_by_name(const std::string & name);

}  // namespace specllama
