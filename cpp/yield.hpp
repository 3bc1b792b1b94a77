// What rounds are expected to emit, and the time they take. Knows neither llama.cpp nor Python.
#pragma once

namespace specllama {

struct Yield {
    double rounds = 0.0;
    double tokens = 0.0;
    double seconds = 0.0;

    double rate() const { return seconds > 0.0 ? tokens / seconds : 0.0; }

    // Older rounds count for less.
    void fade(double factor) {
        rounds *= factor;
        tokens *= factor;
        seconds *= factor;
    }
    void add(const Yield & other) {
        rounds += other.rounds;
        tokens += other.tokens;
        seconds += other.seconds;
    }
};

}  // namespace specllama
