// Keeps the process from ending in the middle of a decode.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace specllama {

// A decode that is under way. When the process ends, exit() destroys ggml's static objects while daemon threads of
// Python may still compute with them. So exit() waits for the decodes that are under way, and threads that begin
// another decode then sleep until the process ends.
class DecodeUnderWay {
public:
    DecodeUnderWay() {
        // By now a model is loaded, and ggml has made its static objects: exit() destroys them after it has run wait().
        static std::once_flag once;
        std::call_once(once, [] {
            process_ = this_process();
            std::atexit(&wait);
        });
        count_ += 1;
        if (is_ending_) {
            count_ -= 1;
            for (;;) {
                std::this_thread::sleep_for(std::chrono::hours(1));
            }
        }
    }
    ~DecodeUnderWay() { count_ -= 1; }
    DecodeUnderWay(const DecodeUnderWay &) = delete;
    DecodeUnderWay & operator=(const DecodeUnderWay &) = delete;

private:
    static constexpr std::chrono::seconds most_waited_{10};
    static inline std::atomic<int> count_{0};
    static inline std::atomic<bool> is_ending_{false};
    static inline int64_t process_ = 0;  // the process that counts; a fork of it does not have the counted threads

    static int64_t this_process() {
#ifdef _WIN32
        return 0;
#else
        return getpid();
#endif
    }
    static void wait() {
        if (process_ != this_process()) {
            return;
        }
        is_ending_ = true;
        const auto until = std::chrono::steady_clock::now() + most_waited_;
        while (count_ > 0 && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
};

}  // namespace specllama
