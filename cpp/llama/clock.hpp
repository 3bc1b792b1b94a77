// Wall-clock seconds.
#pragma once

#include <chrono>

namespace specllama {

inline double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the lifetime of the object to a counter.
class Stopwatch {
public:
    explicit Stopwatch(double & seconds) : seconds_(seconds), start_(now_seconds()) {}
    ~Stopwatch() { seconds_ += now_seconds() - start_; }
    Stopwatch(const Stopwatch &) = delete;
    Stopwatch & operator=(const Stopwatch &) = delete;

private:
    double & seconds_;
    double start_;
};

}  // namespace specllama
