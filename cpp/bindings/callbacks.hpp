// Turns the caller's Python functions into functions that the loop can call: logits processors, drafters, and a
// function that is called now and then during long work.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "drafters/function.hpp"
#include "math/sampler_chain.hpp"

namespace specllama {

// function: (history, scores) -> scores.
LogitsProcessor python_processor(const pybind11::object & function, std::vector<int32_t> prompt);

// A function that the loop calls now and then during long work. It lets Python handle signals, such as Ctrl-C, then
// calls the caller's function. If a signal handler or the caller's function raises, the work ends.
std::function<void()> python_poll(const pybind11::object & function);

// function: (history, gamma) -> (tokens, q), where q is an array [tokens, n_vocab] or a list of distributions. The
// function is called with the GIL, although a round runs without the GIL.
DraftingFunction drafting_function(const pybind11::object & function);

}  // namespace specllama
