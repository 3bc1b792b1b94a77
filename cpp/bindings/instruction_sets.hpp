// Finds the kernels' instruction sets by name.
#pragma once

#include <stdexcept>
#include <string>

#include "kernels/instruction_set.hpp"

namespace specllama {

// Throws std::invalid_argument for a set that this processor, or this build, does not have.
inline const kernels::InstructionSet & set_named(const std::string & name) {
    const kernels::InstructionSet * sets[kernels::kMostSets];
    const int count = kernels::usable_sets(sets);
    for (int i = 0; i < count; ++i) {
        if (name == sets[i]->name) {
            return *sets[i];
        }
    }
    throw std::invalid_argument("this processor, or this build, has no kernels for " + name);
}

}  // namespace specllama
