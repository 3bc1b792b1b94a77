// What drafters are made of, and who makes them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "drafter.hpp"
#include "drafter_table.hpp"

namespace specllama {

struct DrafterParts {
    std::shared_ptr<Sequence> model = nullptr;  // of a second model
    std::vector<int32_t> corpus;                // a text to look at besides prompt and output
    // A function of the caller's: fills the tokens and, if it likes, the q of an offer.
    std::function<void(const DraftRequest & request, Offer & out)> function = nullptr;
};

#define SPECLLAMA_MAKE(name, origin, needs, summary) std::unique_ptr<Drafter> make_##name(const DrafterParts & parts);
SPECLLAMA_DRAFTERS(SPECLLAMA_MAKE)
#undef SPECLLAMA_MAKE

// Throws std::invalid_argument for a name that the table does not have, or a part that is missing.
std::unique_ptr<Drafter> make_drafter(const std::string & name, const DrafterParts & parts);

}  // namespace specllama
