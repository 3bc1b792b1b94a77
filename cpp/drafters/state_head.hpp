// Drafts with a head that reads only the target's final state.
#pragma once

#include <memory>

#include "drafters/drafter.hpp"
#include "heads/state_head.hpp"

namespace specllama {

std::shared_ptr<Drafter> make_state_head(std::shared_ptr<const StateHead> head);

}  // namespace specllama
