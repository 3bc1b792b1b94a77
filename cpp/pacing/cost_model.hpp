// T(n): what decoding a batch of n tokens costs, learned from the decodes themselves. Knows neither llama.cpp nor
// Python.
#pragma once

#include <array>
#include <cstddef>
#include <map>

namespace specllama {

class CostModel {
public:
    // Learns that a batch of n tokens took so many seconds.
    void observe(std::size_t n, double seconds);

    // Replaces the observations by the curve of an earlier process, {n: seconds}. The curve's shape is believed until
    // it is measured. The curve's level, a factor of all its times, is taken from the first batches, because the
    // machine may be slower or faster today.
    void restore(const std::map<std::size_t, double> & seconds);

    // Says that the machine may have been busier when the known times were measured. Their shape is still believed;
    // their level is taken from the next three batches. Until then a batch that took longer does not raise the level.
    // Otherwise a caller that compares costs would not decode such batches any more, and would never find out that only
    // this one was held up.
    void distrust_level();

    // Returns a copy for a batch in which `texts` texts decode n tokens each. seconds(n) of the copy is the share of
    // one text: T(texts * n) / texts. The copy learns nothing, because only this object sees whole batches.
    CostModel shared_by(std::size_t texts) const;

    // Returns a copy for one of `texts` texts in a batch to which the other texts bring `others` tokens. seconds(n) of
    // the copy is a sum: an equal share of a batch with one token of each text, and all the time that the text's
    // further tokens add to the batch. Kernels take several rows at a time, so one token more can cost little or much.
    // The copy learns nothing.
    CostModel among(std::size_t others, std::size_t texts) const;

    // The best estimate of T(n) in seconds, n >= 1. Between known sizes it is interpolated. Beyond all known sizes it
    // grows by no more than is usual for memory-bound models, so that sizes which have not been tried look worth
    // trying.
    double seconds(std::size_t n) const;

    // The known times, {n: seconds}.
    std::map<std::size_t, double> known() const;

    // How often a batch of n tokens was seen. A restored size counts as seen once.
    std::size_t count(std::size_t n) const;
    // has_seen: whether a size of up to n tokens was seen at all. is_sure: whether such a size was restored, or seen
    // twice.
    bool has_seen(std::size_t n) const { return !sizes_.empty() && sizes_.begin()->first <= size_with(n); }
    bool is_sure(std::size_t n) const;
    bool empty() const { return sizes_.empty(); }

private:
    // After this many observations of a size, each further one changes it by a small step. Until then the mean of the
    // observations is believed if they are alike. If not, the middle one of three is believed, or the smaller one of
    // two: other work on the machine makes a batch slower, never faster, and the first batches are the slowest.
    static constexpr std::size_t settled_ = 3;

    struct Observation {
        std::size_t n = 0;
        double log_seconds = 0.0;
    };
    struct Size {
        double log_shape = 0.0;  // log T(n) at level 0
        std::size_t count = 0;   // how often the size was seen; a restored size counts as seen once
        bool restored = false;
        std::size_t seen = 0;  // when the size was seen last: the number of that observation
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
    // log of the factor by which all sizes have changed alike since they were measured, as by a hotter processor, a
    // longer history, or other programs.
    double log_level_ = 0.0;
    std::size_t texts_ = 1;   // see shared_by()
    std::size_t others_ = 0;  // see among()
    bool learns_ = true;
    std::size_t num_observed_ = 0;
    // The first observations after distrust_level(), from which the level is found again. num_since_ says how many
    // there are; it is settled_ while the level is trusted.
    std::array<Observation, settled_> since_;
    std::size_t num_since_ = settled_;
    double distrusted_ = 0.0;  // the level that is distrusted
    // A cache of seconds(n) since the last observation, by n; 0 where it was not asked for. The pace asks for the same
    // sizes again and again.
    mutable std::array<double, 80> asked_{};
};

}  // namespace specllama
