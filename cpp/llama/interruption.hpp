// Ends a running decode when a function asks for it, and limits how often this function is called.
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "kernels/this_decode.hpp"
#include "llama/clock.hpp"

namespace specllama {

class Interruption {
public:
    // Whether the process is about to end, so that a decode in this thread is to be given up. Set before the first
    // decode. Null: never.
    static inline bool (*nobody_waits)() = nullptr;

    // Sets the function that is called during a decode; null: none. If it throws, the decode ends, and raise() rethrows
    // the exception.
    void ask(const std::function<void()> * poll) {
        poll_ = poll != nullptr && *poll ? poll : nullptr;
        asked_ = now_seconds();
    }

    // For llama_set_abort_callback: llama.cpp calls it between the operations of a graph, in the thread that decodes.
    // Returns whether the decode is to end.
    static bool is_wanted(void * self) { return static_cast<Interruption *>(self)->look(); }

    // Rethrows the exception of `poll` that ended the decode, if there is one.
    void raise() {
        if (thrown_) {
            std::rethrow_exception(std::exchange(thrown_, nullptr));
        }
    }

private:
    // Each call of `poll` takes Python's global lock, and may have to wait for it for some milliseconds.
    static constexpr double interval_ = 0.05;  // seconds

    bool look() {
        if (nobody_waits != nullptr && nobody_waits()) {
            return true;
        }
        if (poll_ == nullptr || now_seconds() - asked_ < interval_) {
            return false;
        }
        const PanelsOfThread all(nullptr);  // `poll` may decode another batch, which needs all panels
        try {
            (*poll_)();
        } catch (...) {
            thrown_ = std::current_exception();
        }
        asked_ = now_seconds();
        return thrown_ != nullptr;
    }

    const std::function<void()> * poll_ = nullptr;
    double asked_ = 0.0;
    std::exception_ptr thrown_;
};

}  // namespace specllama
