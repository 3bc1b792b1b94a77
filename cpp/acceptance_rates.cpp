// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#include "acceptance_rates.hpp"

#include <algorithm>
#include <cmath>

namespace specllama {

namespace {

constexpr double prior_weight = 6.0;
constexpr double fading = 0.96;        // some 25 outcomes are remembered
constexpr double kept_of_drawn = 0.1;  // of them for the next text, which can be of another kind
constexpr double prior_step = 0.1;     // of what a text has shown, into what is expected of the next ones
constexpr double back_step = 0.02;     // and back for a text that shows nothing: a draft is not given up for good
constexpr double shape_step = 0.04;    // in log odds, times the surprise
constexpr double level_step = 0.12;
constexpr double largest_level = 3.0;

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

Rates::Rates(const std::vector<double> & priors) : shape_(priors.size()) {
    std::transform(priors.begin(), priors.end(), shape_.begin(), log_odds);
}

double Rates::of(std::size_t i) const { return 1.0 / (1.0 + std::exp(-shape_[i] - level_)); }

void Rates::observe(std::size_t i, bool success) {
    const double surprise = (success ? 1.0 : 0.0) - of(i);
    shape_[i] += shape_step * surprise;
    level_ = std::clamp(level_ + level_step * surprise, -largest_level, largest_level);
}

DrafterRates::DrafterRates(const DrafterPriors & priors)
    : together_(priors.together),
      copies_(priors.copies),
      start_(priors.next.empty() ? 0 : priors.next.size() - 1),
      classes_(priors.together ? priors.classes : std::vector<double>()),
      next_(priors.next),
      any_(priors.any) {
    for (std::size_t i = 0; !together_ && i < priors.classes.size(); ++i) {
        apart_.emplace_back(priors.classes[i]);
    }
}

double DrafterRates::of(const Expectation & token) const {
    return together_ ? classes_.of(token.bucket) : apart_[token.bucket].mean();
}

void DrafterRates::observe(const Expectation & token, bool accepted) {
    if (together_) {
        classes_.observe(token.bucket, accepted);
    } else {
        apart_[token.bucket].observe(accepted);
    }
    if (draws()) {
        next_.observe(token.before, accepted);
        any_.observe(accepted);
    }
}

void DrafterRates::new_text() {
    if (together_) {
        classes_.new_text();
    }
    if (draws()) {
        next_.new_text();
        any_.new_text(kept_of_drawn);
    }
}

AcceptanceRates::AcceptanceRates(const std::vector<DrafterPriors> & priors) {
    for (const DrafterPriors & of_one : priors) {
        rates_.emplace_back(of_one);
    }
}

void AcceptanceRates::new_text() {
    for (DrafterRates & rates : rates_) {
        rates.new_text();
    }
}

}  // namespace specllama
