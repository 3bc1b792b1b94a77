// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#include "acceptance.hpp"

#include <algorithm>
#include <cmath>

namespace specllama {

namespace {

constexpr double prior_weight = 3.0;
constexpr double fading = 0.98;  // some 50 outcomes are remembered

constexpr std::array<double, Acceptance::num_confidences - 1> confidences{0.2, 0.35, 0.5,  0.65, 0.8,
                                                                          0.9, 0.95, 0.98, 0.995};
constexpr std::array<double, Acceptance::num_confidences> confidence_priors{0.15, 0.3,  0.4, 0.5,  0.65,
                                                                            0.75, 0.85, 0.9, 0.95, 0.98};
constexpr std::array<std::size_t, Acceptance::num_lengths - 1> lengths{3, 4, 5, 7, 10, 16, 32};
constexpr std::array<double, Acceptance::num_lengths> length_priors{0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.95};

}  // namespace

void Rate::observe(bool success) {
    successes_ = fading * successes_ + (success ? 1.0 : 0.0);
    trials_ = fading * trials_ + 1.0;
}

void Rate::fade(double factor) {
    successes_ *= factor;
    trials_ *= factor;
}

double Rate::optimistic() const {
    const double rate = mean();
    return std::min(1.0, rate + std::sqrt(rate * (1.0 - rate) / (prior_weight + trials_)));
}

double Rate::mean() const { return (prior_ * prior_weight + successes_) / (prior_weight + trials_); }

Acceptance::Acceptance() : model_(0.7), padding_(0.05) {
    for (std::size_t i = 0; i < num_confidences; ++i) {
        confidence_[i] = Rate(confidence_priors[i]);
        next_[i] = Rate(0.5 + 0.4 * confidence_priors[i]);
    }
    next_[start] = Rate(0.7);
    for (std::size_t i = 0; i < num_lengths; ++i) {
        match_[i] = Rate(length_priors[i]);
        match_[num_lengths + i] = Rate(0.6 * length_priors[i]);
    }
}

Expectation Expectation::of_model(double probability, std::size_t before) {
    const auto above = std::upper_bound(confidences.begin(), confidences.end(), probability);
    return {Source::model, static_cast<std::size_t>(above - confidences.begin()), before};
}

Expectation Expectation::of_lookup(std::size_t length, bool disputed) {
    const auto above = std::upper_bound(lengths.begin(), lengths.end(), length);
    const auto bucket = static_cast<std::size_t>(above - lengths.begin());
    return {Source::lookup, bucket + (disputed ? Acceptance::num_lengths : 0), 0};
}

void Acceptance::forget_model(double factor) {
    model_.fade(factor);
    for (Rate & rate : next_) {
        rate.fade(factor);
    }
}

double Acceptance::of(const Expectation & token) const {
    switch (token.source) {
        case Source::model:
            return confidence_[token.bucket].mean();
        case Source::lookup:
            return match_[token.bucket].mean();
        case Source::function:
        case Source::padding:
            break;
    }
    return padding_.mean();
}

void Acceptance::observe(const Expectation & token, bool accepted) {
    switch (token.source) {
        case Source::model:
            confidence_[token.bucket].observe(accepted);
            next_[token.before].observe(accepted);
            model_.observe(accepted);
            break;
        case Source::lookup:
            match_[token.bucket].observe(accepted);
            break;
        case Source::function:
        case Source::padding:
            padding_.observe(accepted);
            break;
    }
}

}  // namespace specllama
