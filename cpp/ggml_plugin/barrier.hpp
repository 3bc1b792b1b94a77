// Lets ggml's threads wait for one another within an operation, where ggml does not export its own barrier (Windows).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "ggml/ggml_layout.hpp"

namespace specllama {

// Returns when all threads that compute the operation have called this. What they wrote before can be read then.
//
// The last two words of the operation's parameters, which are 0 in a new operation and which ggml does not use, count
// the threads that have come, and how often all have come. So threads may wait several times in one operation.
inline void wait_for_all(const ggml::ComputeParams & params, ggml::Tensor * op) {
    using Counter = std::atomic<int32_t>;
    static_assert(sizeof(Counter) == sizeof(int32_t) && Counter::is_always_lock_free);
    constexpr int kCome = ggml::kMaxOpParams / 4 - 2;
    constexpr int kSpins = 10000;  // some microseconds; a thread that waits longer leaves its core to others
    auto & come = reinterpret_cast<Counter &>(op->op_params[kCome]);
    auto & rounds = reinterpret_cast<Counter &>(op->op_params[kCome + 1]);
    const int32_t round = rounds.load(std::memory_order_relaxed);
    if (come.fetch_add(1, std::memory_order_acq_rel) == params.nth - 1) {
        come.store(0, std::memory_order_relaxed);
        rounds.store(static_cast<int32_t>(static_cast<uint32_t>(round) + 1), std::memory_order_release);
        return;
    }
    for (int spins = 0; rounds.load(std::memory_order_acquire) == round; ++spins) {
        if (spins >= kSpins) {
            std::this_thread::yield();
        }
    }
}

}  // namespace specllama
