// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace specllama {

// Where a drafted token came from.
enum class Source { model, lookup, function, padding, grammar };
constexpr std::size_t num_sources = 5;
constexpr std::array<const char *, num_sources> source_names{"model", "lookup", "function", "padding", "grammar"};

// What was known of a drafted token when it was drafted: where it came from, and a class of tokens like it.
struct Expectation {
    Source source = Source::model;
    std::size_t bucket = 0;
    std::size_t before = 0;  // for the model: the bucket of what came before it

    // A model's token, by the probability that it gave it.
    static Expectation of_model(double probability, std::size_t before);
    // A looked-up token, by how many tokens agree before it, and whether other occurrences went on differently.
    static Expectation of_lookup(std::size_t length, bool disputed);
    // A token that a grammar forces; alone: no other may come next.
    static Expectation of_grammar(bool alone) { return {Source::grammar, alone ? 0U : 1U, 0}; }
    static Expectation of_padding() { return {Source::padding, 0, 0}; }
};

// A rate with a prior. Old outcomes fade: texts change their kind. The prior follows them slowly: a draft that was of
// no use in many texts is not tried as hopefully in the next one.
class Rate {
public:
    Rate() = default;
    explicit Rate(double prior) : first_prior_(prior), prior_(prior) {}
    void observe(bool success);
    // Another text: so much of what was observed is kept beside the prior.
    void new_text(double kept);
    // Time has passed: what was observed counts for less.
    void fade(double factor);
    double mean() const;
    // As high as it may well be: so many standard errors above the mean.
    double optimistic(double standard_errors = 1.0) const;

private:
    double first_prior_ = 0.5;
    double prior_ = 0.5;
    double successes_ = 0.0;
    double trials_ = 0.0;
    bool observed_ = false;  // in this text
};

// Rates of classes that rise and fall together (online logistic regression). Each class keeps its distance to the
// others for long; what they share follows the text at hand within some tokens.
class Rates {
public:
    Rates(const double * priors, std::size_t count);
    double of(std::size_t i) const;
    void observe(std::size_t i, bool success);
    // Another text: what was particular to the last one counts for less.
    void new_text() { level_ *= kept_; }

private:
    static constexpr double kept_ = 0.3;
    std::vector<double> shape_;  // log odds at level 0
    double level_ = 0.0;
};

class Acceptance {
public:
    static constexpr std::size_t num_confidences = 10;
    static constexpr std::size_t num_lengths = 8;
    static constexpr std::size_t start = num_confidences;  // `before` of a draft's first token

    Acceptance();

    // Before a model's token is drawn, given what is drafted before it (the bucket of the last token, or `start`).
    double next(std::size_t before) const { return next_.of(before); }
    // Of any token of the model.
    const Rate & model() const { return model_; }
    double of(const Expectation & token) const;

    void observe(const Expectation & token, bool accepted);
    void new_text();
    // The model has not drafted for a while.
    void forget_model(double factor) { model_.fade(factor); }

private:
    Rates confidence_;
    Rates next_;
    Rates match_;
    Rate model_;
    Rate padding_;
    std::array<Rate, 2> forced_;  // by a grammar: by Expectation::bucket
};

}  // namespace specllama
