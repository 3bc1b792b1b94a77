// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "pacing/pace_constants.hpp"

namespace specllama {

enum class Source;  // drafters/source.hpp

// What was known of a drafted token when it was drafted: where it came from, and a class of tokens like it.
struct Expectation {
    Source source{};
    std::size_t bucket = 0;
    std::size_t before = 0;  // of a drawn token: the bucket of what came before it
};

// What is believed of a drafter's tokens before any was verified.
struct DrafterPriors {
    std::vector<double> classes;  // of Expectation::bucket: how often such a token is accepted
    bool together = false;        // the classes rise and fall together, and begin anew with each text
    bool copies = false;          // it may offer long runs, which are begun with short ones
    // Of a drafter that draws its tokens one by one: by the bucket of the token before, and last of a draft's first.
    std::vector<double> next;
    double any = 0.0;  // of any token that it draws

    // Each class is learned for itself, for good.
    static DrafterPriors apart(std::vector<double> classes) { return {std::move(classes), false, false, {}, 0.0}; }
    static DrafterPriors runs(std::vector<double> classes) { return {std::move(classes), true, true, {}, 0.0}; }
    static DrafterPriors drawn(std::vector<double> classes, std::vector<double> next, double any) {
        return {std::move(classes), true, false, std::move(next), any};
    }
};

// A rate with a prior. Old outcomes fade: texts change their kind. The prior follows them slowly: a draft that was of
// no use in many texts is not tried as hopefully in the next one.
class Rate {
public:
    Rate(double prior, const PaceConstants & constants) : constants_(constants), first_prior_(prior), prior_(prior) {}
    void observe(bool success);
    // Another text: so much of what was observed is kept beside the prior.
    void new_text(double kept);
    // Time has passed: what was observed counts for less.
    void fade(double factor);
    double mean() const;
    // As high as it may well be: so many standard errors above the mean.
    double optimistic(double standard_errors = 1.0) const;

private:
    PaceConstants constants_;
    double first_prior_;
    double prior_;
    double successes_ = 0.0;
    double trials_ = 0.0;
    bool observed_ = false;  // in this text
};

// Rates of classes that rise and fall together (online logistic regression). Each class keeps its distance to the
// others for long; what they share follows the text at hand within some tokens.
class Rates {
public:
    Rates(const std::vector<double> & priors, const PaceConstants & constants);
    double of(std::size_t i) const;
    void observe(std::size_t i, bool success);
    // Another text: what was particular to the last one counts for less.
    void new_text() { level_ *= constants_.kept_of_text; }

private:
    PaceConstants constants_;
    std::vector<double> shape_;  // log odds at level 0
    double level_ = 0.0;
};

// What is learned of one drafter.
class DrafterRates {
public:
    DrafterRates(const DrafterPriors & priors, const PaceConstants & constants);

    bool copies() const { return copies_; }
    double of(const Expectation & token) const;
    void observe(const Expectation & token, bool accepted);
    void new_text();

    // Of a drafter that draws. Before a token is drawn, given the bucket of the last one, or start().
    double next(std::size_t before) const { return next_.of(before); }
    std::size_t start() const { return start_; }
    // Of any of its tokens.
    const Rate & any() const { return any_; }
    // It has not drafted for a while.
    void forget(double factor) { any_.fade(factor); }

private:
    bool draws() const { return start_ > 0; }

    double kept_of_drawn_;
    bool together_;
    bool copies_;
    std::size_t start_;
    Rates classes_;
    std::vector<Rate> apart_;
    Rates next_;
    Rate any_;
};

class AcceptanceRates {
public:
    // By Source.
    explicit AcceptanceRates(const std::vector<DrafterPriors> & priors, const PaceConstants & constants = {});

    DrafterRates & of(Source source) { return rates_[static_cast<std::size_t>(source)]; }
    const DrafterRates & of(Source source) const { return rates_[static_cast<std::size_t>(source)]; }
    double of(const Expectation & token) const { return of(token.source).of(token); }
    void observe(const Expectation & token, bool accepted) { of(token.source).observe(token, accepted); }
    void new_text();

private:
    std::vector<DrafterRates> rates_;
};

}  // namespace specllama
