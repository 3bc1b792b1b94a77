// Makes drafters by name.
#include "drafters/table.hpp"

#include <stdexcept>

namespace specllama {

std::vector<DrafterPriors> all_priors() {
#define SPECLLAMA_PRIORS(name, origin, needs, summary) name##_priors(),
    return {SPECLLAMA_DRAFTERS(SPECLLAMA_PRIORS)};
#undef SPECLLAMA_PRIORS
}

std::unique_ptr<Drafter> make_drafter(const std::string & name, const DrafterParts & parts) {
#define SPECLLAMA_MAKE(line, origin, needs, summary) \
    if (name == #line) {                             \
        return make_##line(parts);                   \
    }
    SPECLLAMA_DRAFTERS(SPECLLAMA_MAKE)
#undef SPECLLAMA_MAKE
    std::string names;
    for (const DrafterAbout & known : drafters) {
        names += std::string(names.empty() ? "'" : ", '") + known.name + "'";
    }
    throw std::invalid_argument("unknown drafter '" + name + "': use some of " + names);
}

}  // namespace specllama
