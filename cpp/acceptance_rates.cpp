// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#include "acceptance_rates.hpp"

#include <algorithm>
#include <cmath>

namespace specllama {

namespace {

constexpr double prior_weight = 6.0;
constexpr double fading = 0.96;        // some 25 outcomes are remembered
constexpr double kept_of_model = 0.1;  // of them for the next text, which can be of another kind
constexpr double prior_step = 0.1;     // of what a text has shown, into what is expected of the next ones
constexpr double back_step = 0.02;     // and back for a text that shows nothing: a draft is not given up for good
constexpr double shape_step = 0.04;    // in log odds, times the surprise
constexpr double level_step = 0.12;
constexpr double largest_level = 3.0;

// Bounds of the buckets, and what a pair of models of one family showed on code, prose and questions (greedy).
constexpr std::array<double, Acceptance::num_confidences - 1> confidences{0.2, 0.35, 0.5,  0.65, 0.8,
                                                                          0.9, 0.95, 0.98, 0.995};
constexpr std::array<double, Acceptance::num_confidences> confidence_priors{0.26, 0.37, 0.52, 0.69, 0.82,
                                                                            0.92, 0.95, 0.98, 0.99, 0.995};
constexpr std::array<double, Acceptance::num_confidences + 1> next_priors{0.65, 0.65, 0.74, 0.78, 0.78, 0.80,
                                                                          0.81, 0.86, 0.90, 0.95, 0.75};
constexpr std::array<std::size_t, Acceptance::num_lengths - 1> lengths{3, 4, 5, 7, 10, 16, 32};
constexpr std::array<double, 2 * Acceptance::num_lengths> match_priors{0.50, 0.62, 0.66, 0.72, 0.80, 0.82, 0.88, 0.95,
                                                                       0.15, 0.25, 0.30, 0.30, 0.40, 0.50, 0.60, 0.70};

double log_odds(double p) { return std::log(p / (1.0 - p)); }

}  // namespace

void Rate::observe(bool success) {
    successes_ = fading * successes_ + (success ? 1.0 : 0.0);
    trials_ = fading * trials_ + 1.0;
    observed_ = true;
}

void Rate::new_text(double kept) {
    prior_ += observed_ ? prior_step * (mean() - prior_) : back_step * (first_prior_ - prior_);
    observed_ = false;
    fade(kept);
}

void Rate::fade(double factor) {
    successes_ *= factor;
    trials_ *= factor;
}

double Rate::mean() const { return (prior_ * prior_weight + successes_) / (prior_weight + trials_); }

double Rate::optimistic(double standard_errors) const {
    const double rate = mean();
    return std::min(1.0, rate + standard_errors * std::sqrt(rate * (1.0 - rate) / (prior_weight + trials_)));
}

Rates::Rates(const double * priors, std::size_t count) : shape_(count) {
    std::transform(priors, priors + count, shape_.begin(), log_odds);
}

double Rates::of(std::size_t i) const { return 1.0 / (1.0 + std::exp(-shape_[i] - level_)); }

void Rates::observe(std::size_t i, bool success) {
    const double surprise = (success ? 1.0 : 0.0) - of(i);
    shape_[i] += shape_step * surprise;
    level_ = std::clamp(level_ + level_step * surprise, -largest_level, largest_level);
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

Acceptance::Acceptance()
    : confidence_(confidence_priors.data(), confidence_priors.size()),
      next_(next_priors.data(), next_priors.size()),
      match_(match_priors.data(), match_priors.size()),
      model_(0.75),
      padding_(0.05),
      forced_{Rate(0.995), Rate(0.7)} {}

double Acceptance::of(const Expectation & token) const {
    switch (token.source) {
        case Source::model:
            return confidence_.of(token.bucket);
        case Source::lookup:
            return match_.of(token.bucket);
        case Source::grammar:
            return forced_[token.bucket].mean();
        case Source::function:
        case Source::padding:
            break;
    }
    return padding_.mean();
}

void Acceptance::observe(const Expectation & token, bool accepted) {
    switch (token.source) {
        case Source::model:
            confidence_.observe(token.bucket, accepted);
            next_.observe(token.before, accepted);
            model_.observe(accepted);
            break;
        case Source::lookup:
            match_.observe(token.bucket, accepted);
            break;
        case Source::grammar:
            forced_[token.bucket].observe(accepted);
            break;
        case Source::function:
        case Source::padding:
            padding_.observe(accepted);
            break;
    }
}

void Acceptance::new_text() {
    confidence_.new_text();
    next_.new_text();
    match_.new_text();
    model_.new_text(kept_of_model);
}

}  // namespace specllama
