// A draft model with another tokenizer.
#pragma once

#include <memory>

#include "drafters/model.hpp"
#include "translation/translation.hpp"

namespace specllama {

// parts: they must have no map, no mask token and no inner drafter.
std::shared_ptr<Drafter> make_foreign(ModelParts parts, std::shared_ptr<const Translation> translation);

}  // namespace specllama
