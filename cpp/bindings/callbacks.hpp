// Functions of the caller's as the loop calls them: processors, drafters, what looks at signals. Each may be None.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "drafters/table.hpp"
#include "math/sampler_chain.hpp"

namespace specllama {

// function(history, scores) -> scores.
LogitsProcessor python_processor(const pybind11::object & function, std::vector<int32_t> prompt);

// Looks at signals, and calls a function that may raise.
std::function<void()> python_poll(const pybind11::object & function);

// function(history, gamma) -> (tokens, q), where q is an array [tokens, n_vocab] or a list of distributions. A round
// runs without the GIL, and the drafter with it.
DraftingFunction drafting_function(const pybind11::object & function);

}  // namespace specllama
