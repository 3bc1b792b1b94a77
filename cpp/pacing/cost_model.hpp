// T(n): what decoding a batch of n tokens costs, learned from the decodes themselves. Knows neither llama.cpp nor
// Python.
#pragma once

#include <array>
#include <cstddef>
#include <map>

namespace specllama {

class CostModel {
public:
    // A batch of n tokens took so long.
    void observe(std::size_t n, double seconds);

    // Takes over the curve of an earlier process, {n: seconds}, in place of what was observed. Its shape is believed
    // until measured, and its level is taken from the first batches: the machine may be slower or faster today.
    void restore(const std::map<std::size_t, double> & seconds);

    // What is known may be from a busier hour: its shape is believed, its level is taken from the next batches. Until
    // there are three, a batch that took longer changes nothing: whoever looks at what it costs, before it decodes more
    // of them, would never find out that this one was held up.
    void distrust_level();

    // What it costs one of `texts` that decode n tokens each in one batch: T(texts * n) / texts. The copy learns
    // nothing: only this object sees whole batches.
    CostModel shared_by(std::size_t texts) const;

    // What it costs one of `texts` if the others bring so many tokens to the batch: an equal share of a batch with one
    // token of each, and all that its own further tokens add to the batch of the others. Kernels take some rows at a
    // time, so one token more can cost little or much. This copy learns nothing, either.
    CostModel beside(std::size_t others, std::size_t texts) const;

    // The best estimate of T(n) in seconds, n >= 1. Between sizes that are known it is interpolated. Beyond them it
    // grows by no more than is usual for memory-bound models, so that sizes which have not been tried look worth
    // trying.
    double seconds(std::size_t n) const;

    // What is known: {n: seconds}.
    std::map<std::size_t, double> known() const;

    // How often batches of n tokens were seen; what was restored counts once.
    std::size_t count(std::size_t n) const;
    // Whether one size of up to n tokens was seen at all, and whether one was restored or seen twice.
    bool has_seen(std::size_t n) const { return !sizes_.empty() && sizes_.begin()->first <= size_with(n); }
    bool is_sure(std::size_t n) const;
    bool empty() const { return sizes_.empty(); }

private:
    // Of up to so many the mean is believed; the middle one, or the smaller one of two, where they are not alike:
    // whatever else happens on the machine makes a batch slower, never faster, and the first ones are the slowest.
    static constexpr std::size_t settled_ = 3;

    struct Observation {
        std::size_t n = 0;
        double log_seconds = 0.0;
    };
    struct Size {
        double log_shape = 0.0;  // log T(n) at level 0
        std::size_t count = 0;   // what was restored counts as having been seen once
        bool restored = false;
        std::size_t seen = 0;  // when it was seen last, in observations
        std::array<double, settled_> first{};
    };

    static double believed(std::array<double, settled_> values, std::size_t count);
    bool takes_level(const Observation & observation);
    void learn(const Observation & observation);
    void doubt_others(std::size_t known);
    double log_shape(std::size_t n) const;
    double whole(std::size_t n) const;
    double added(std::size_t n) const;
    std::size_t size_with(std::size_t n) const { return others_ > 0 ? others_ + n : texts_ * n; }
    void forget_worst_guess();

    std::map<std::size_t, Size> sizes_;
    // What has changed for all sizes alike since they were measured: a hotter processor, a longer history, a neighbour.
    double log_level_ = 0.0;
    std::size_t texts_ = 1;   // see shared_by()
    std::size_t others_ = 0;  // see beside()
    bool learns_ = true;
    std::size_t num_observed_ = 0;
    // Seen since the level was distrusted; settled_ of them where it is not.
    std::array<Observation, settled_> since_;
    std::size_t num_since_ = settled_;
    double distrusted_ = 0.0;  // the level
    // What was asked for since the last observation, by n; 0 if it was not. Whoever decides asks again and again.
    mutable std::array<double, 80> asked_{};
};

}  // namespace specllama
