// A thread with a stack of a given size.
#pragma once

#include <cstddef>
#include <functional>

namespace specllama {

// Whether `on_stack` can give a thread a stack of any size.
bool has_deep_stacks();

// Runs `work` in a thread with a stack of `bytes` bytes, waits for it, and rethrows what it throws. Only the used part
// of the stack takes memory. Returns how many bytes were used if `measure`, else 0. Throws std::bad_alloc if the system
// does not provide the address space or the thread.
std::size_t on_stack(std::size_t bytes, bool measure, const std::function<void()> & work);

}  // namespace specllama
