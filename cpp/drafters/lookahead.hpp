// Drafts n-grams that the target itself has generated in a window beside the text (lookahead decoding; Fu et al. 2024,
// arXiv 2402.02057, algorithm 2).
#pragma once

#include <memory>

#include "drafters/drafter.hpp"
#include "pacing/lookahead_window.hpp"

namespace specllama {

std::shared_ptr<Drafter> make_lookahead(std::shared_ptr<LookaheadWindow> window);

}  // namespace specllama
