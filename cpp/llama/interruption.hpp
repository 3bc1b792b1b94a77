// Who may end a decode that is running, and how often they are asked.
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "kernels/this_decode.hpp"
#include "llama/clock.hpp"

namespace specllama {

class Interruption {
public:
    // Whether the process ends, so that no decode of this thread's is waited for. Set before the first decode; null: it
    // does not.
    static inline bool (*nobody_waits)() = nullptr;

    // Asked from now on; null: nobody. What it throws ends the decode, and is thrown again by raise().
    void ask(const std::function<void()> * poll) {
        poll_ = poll != nullptr && *poll ? poll : nullptr;
        asked_ = now_seconds();
    }

    // For llama_set_abort_callback, which calls it between the operations of a graph, in the thread that decodes.
    // Whether the decode is to end.
    static bool is_wanted(void * self) { return static_cast<Interruption *>(self)->look(); }

    // Throws what ended the decode, if it was that.
    void raise() {
        if (thrown_) {
            std::rethrow_exception(std::exchange(thrown_, nullptr));
        }
    }

private:
    // Asking takes Python's lock, for which it may have to wait some milliseconds.
    static constexpr double interval_ = 0.05;  // seconds

    bool look() {
        if (nobody_waits != nullptr && nobody_waits()) {
            return true;
        }
        if (poll_ == nullptr || now_seconds() - asked_ < interval_) {
            return false;
        }
        const PanelsOfThread all(nullptr);  // the function that is asked may decode something else
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
