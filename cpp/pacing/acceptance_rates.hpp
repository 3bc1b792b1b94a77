// How likely a drafted token is accepted, learned from earlier outcomes. Knows neither llama.cpp nor Python.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "pacing/pace_constants.hpp"

namespace specllama {

enum class Source;  // drafters/source.hpp

// What is known of a drafted token when it is drafted: the drafter that it comes from, and its class (bucket). Tokens
// of one class are about equally likely to be accepted.
struct Expectation {
    Source source{};
    std::size_t bucket = 0;
    std::size_t before = 0;  // for a drawn token only: the bucket of the token before it
};

// The acceptance rates that are assumed for a drafter's tokens before any of them has been verified.
struct DrafterPriors {
    std::vector<double> classes;  // by Expectation::bucket: how often a token of that class is accepted
    bool linked = false;          // the rates of the classes rise and fall together, and begin anew with each text
    bool copies = false;          // the drafter may offer long copies of earlier text; the pace first takes short parts
    // For a drafter that draws its tokens one by one: how often the next token is accepted, by the bucket of the token
    // before it. The last entry belongs to the first token of a draft.
    std::vector<double> next;
    double any = 0.0;  // for a drafter that draws: how often any of its tokens is accepted

    // The rate of each class is learned separately, and kept from text to text.
    static DrafterPriors apart(std::vector<double> classes) { return {std::move(classes), false, false, {}, 0.0}; }
    static DrafterPriors runs(std::vector<double> classes) { return {std::move(classes), true, true, {}, 0.0}; }
    static DrafterPriors drawn(std::vector<double> classes, std::vector<double> next, double any) {
        return {std::move(classes), true, false, std::move(next), any};
    }
};

// A success rate with a prior. Old outcomes fade, because texts change their kind. The prior slowly follows the
// outcomes: a draft that was of no use in many texts is tried less often in the next one.
class Rate {
public:
    Rate(double prior, const PaceConstants & constants) : constants_(constants), first_prior_(prior), prior_(prior) {}
    void observe(bool success);
    // Begins another text: moves the prior toward what was observed, and keeps a share of the observations.
    void new_text();
    // Weights the observations by `factor`, because they have grown old.
    void fade(double factor);
    double mean() const;
    // The upper end of the estimate's uncertainty: the mean plus this many standard errors.
    double optimistic(double standard_errors = 1.0) const;

private:
    PaceConstants constants_;
    double first_prior_;
    double prior_;
    double successes_ = 0.0;
    double trials_ = 0.0;
    bool observed_ = false;  // in this text
};

// The rates of classes that rise and fall together (online logistic regression). The distances between the classes
// change slowly; their common level follows the current text within some tokens.
class Rates {
public:
    Rates(const std::vector<double> & priors, const PaceConstants & constants);
    double of(std::size_t i) const;
    void observe(std::size_t i, bool success);
    // Begins another text: the level of the last text counts for less.
    void new_text() { level_ *= constants_.kept_of_text; }

private:
    PaceConstants constants_;
    std::vector<double> shape_;  // by class: log odds at level 0
    double level_ = 0.0;
};

// The acceptance rates of one drafter's tokens, as learned so far.
class DrafterRates {
public:
    DrafterRates(const DrafterPriors & priors, const PaceConstants & constants);

    bool copies() const { return copies_; }
    double of(const Expectation & token) const;
    void observe(const Expectation & token, bool accepted);
    void new_text();

    // For a drafter that draws: how often its next token is accepted. before: the bucket of the token before it, or
    // start() for the first token of a draft.
    double next(std::size_t before) const { return next_.of(before); }
    std::size_t start() const { return start_; }
    // How often any token that the drafter draws is accepted.
    const Rate & any() const { return any_; }
    // Weights the observations by `factor`, because the drafter has not drafted for a while.
    void forget(double factor) { any_.fade(factor); }

private:
    bool draws() const { return start_ > 0; }

    bool linked_;
    bool copies_;
    std::size_t start_;
    Rates classes_;
    std::vector<Rate> apart_;
    Rates next_;
    Rate any_;
};

class AcceptanceRates {
public:
    // priors: of all drafters, by Source.
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
