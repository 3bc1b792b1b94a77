// T(n): what decoding a batch of n tokens costs, learned from the decodes themselves. Knows neither llama.cpp nor
// Python.
#pragma once

#include <cstddef>
#include <map>

namespace specllama {

class CostModel {
public:
    // A batch of n tokens took so long.
    void observe(std::size_t n, double seconds);

    // Takes over the curve of an earlier process, {n: seconds}. Its shape is believed until measured; its level only
    // until the first batch: the machine may be slower or faster today.
    void restore(const std::map<std::size_t, double> & seconds);

    // The best estimate of T(n) in seconds, n >= 1. Between sizes that are known it is interpolated. Beyond them it
    // grows by no more than is usual for memory-bound models, so that sizes which have not been tried look worth
    // trying.
    double seconds(std::size_t n) const;

    // What is known: {n: seconds}.
    std::map<std::size_t, double> known() const;

    // How often batches of n tokens were seen in this process.
    std::size_t count(std::size_t n) const;
    bool empty() const { return sizes_.empty(); }

private:
    struct Size {
        double log_shape = 0.0;  // log T(n) at level 0
        std::size_t count = 0;
    };

    double log_shape(std::size_t n) const;

    std::map<std::size_t, Size> sizes_;
    // What has changed for all sizes alike since they were measured: a hotter processor, a longer history, a neighbour.
    double log_level_ = 0.0;
    bool level_known_ = false;
};

}  // namespace specllama
