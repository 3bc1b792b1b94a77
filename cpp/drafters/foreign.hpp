// A draft model with another tokenizer.
#pragma once

#include <memory>

#include "drafters/model.hpp"
#include "translation/translation.hpp"

namespace specllama {

// parts: without a map, masks and an inner drafter.
std::shared_ptr<Drafter> make_foreign(ModelParts parts, std::shared_ptr<const Translation> translation);

}  // namespace specllama
