// How likely a drafted token is accepted, learned from earlier outcomes. Knows neither llama.cpp nor Python.
#include "pacing/acceptance_rates.hpp"

#include <algorithm>
#include <cmath>

namespace specllama {

namespace {

double log_odds(double p) { return std::log(p / (1.0 - p)); }

}  // namespace

void Rate::observe(bool success) {
    fade(1.0 - 1.0 / constants_.remembered_outcomes);
    successes_ += success ? 1.0 : 0.0;
    trials_ += 1.0;
    observed_ = true;
}

void Rate::new_text() {
    prior_ += observed_ ? constants_.prior_step * (mean() - prior_) : constants_.back_step * (first_prior_ - prior_);
    observed_ = false;
    fade(constants_.kept_of_text);
}

void Rate::fade(double factor) {
    successes_ *= factor;
    trials_ *= factor;
}

double Rate::mean() const {
    return (prior_ * constants_.prior_weight + successes_) / (constants_.prior_weight + trials_);
}

double Rate::optimistic(double standard_errors) const {
    const double rate = mean();
    const double trials = constants_.prior_weight + trials_;
    return std::min(1.0, rate + standard_errors * std::sqrt(rate * (1.0 - rate) / trials));
}

Rates::Rates(const std::vector<double> & priors, const PaceConstants & constants)
    : constants_(constants), shape_(priors.size()) {
    std::transform(priors.begin(), priors.end(), shape_.begin(), log_odds);
}

double Rates::of(std::size_t i) const { return 1.0 / (1.0 + std::exp(-shape_[i] - level_)); }

void Rates::observe(std::size_t i, bool success) {
    const double surprise = (success ? 1.0 : 0.0) - of(i);
    shape_[i] += constants_.shape_step * surprise;
    level_ += constants_.level_step * surprise;
}

DrafterRates::DrafterRates(const DrafterPriors & priors, const PaceConstants & constants)
    : linked_(priors.linked),
      copies_(priors.copies),
      start_(priors.next.empty() ? 0 : priors.next.size() - 1),
      classes_(priors.linked ? priors.classes : std::vector<double>(), constants),
      next_(priors.next, constants),
      any_(priors.any, constants) {
    for (std::size_t i = 0; !linked_ && i < priors.classes.size(); ++i) {
        apart_.emplace_back(priors.classes[i], constants);
    }
}

double DrafterRates::of(const Expectation & token) const {
    return linked_ ? classes_.of(token.bucket) : apart_[token.bucket].mean();
}

void DrafterRates::observe(const Expectation & token, bool accepted) {
    if (linked_) {
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
    if (linked_) {
        classes_.new_text();
    }
    if (draws()) {
        next_.new_text();
        any_.new_text();
    }
}

AcceptanceRates::AcceptanceRates(const std::vector<DrafterPriors> & priors, const PaceConstants & constants) {
    for (const DrafterPriors & of_one : priors) {
        rates_.emplace_back(of_one, constants);
    }
}

void AcceptanceRates::new_text() {
    for (DrafterRates & rates : rates_) {
        rates.new_text();
    }
}

}  // namespace specllama
