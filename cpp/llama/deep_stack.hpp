// A thread with as much stack as is asked for.
#pragma once

#include <cstddef>
#include <functional>

namespace specllama {

// Whether `on_stack` can give a thread a stack of any size.
bool has_deep_stacks();

// Runs `work` on a thread with a stack of so many bytes, and waits for it. What it throws is thrown here.
// Memory is taken as far as it is used. Returns how many bytes were used, if `measure`.
// Throws std::bad_alloc: the system does not give so much address space, or no thread.
std::size_t on_stack(std::size_t bytes, bool measure, const std::function<void()> & work);

}  // namespace specllama
