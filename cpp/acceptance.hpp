// How likely a drafted token is accepted, learned from those that were. Knows neither llama.cpp nor Python.
#pragma once

#include <array>
#include <cstddef>

namespace specllama {

// A rate with a prior. Old outcomes fade: texts change their kind.
class Rate {
public:
    Rate() = default;
    explicit Rate(double prior) : prior_(prior) {}
    void observe(bool success);
    // Time has passed: what was observed counts for less.
    void fade(double factor);
    double mean() const;
    // As high as it may well be: one standard error above the mean.
    double optimistic() const;

private:
    double prior_ = 0.5;
    double successes_ = 0.0;
    double trials_ = 0.0;
};

// Where a drafted token came from.
enum class Source { model, lookup, function, padding };
constexpr std::size_t num_sources = 4;
constexpr std::array<const char *, num_sources> source_names{"model", "lookup", "function", "padding"};

// What was known of a drafted token when it was drafted: where it came from, and a class of tokens like it.
struct Expectation {
    Source source = Source::model;
    std::size_t bucket = 0;
    std::size_t before = 0;  // for the model: the bucket of what came before it

    // A model's token, by the probability that it gave it.
    static Expectation of_model(double probability, std::size_t before);
    // A looked-up token, by how many tokens agree before it, and whether other occurrences went on differently.
    static Expectation of_lookup(std::size_t length, bool disputed);
    static Expectation of_padding() { return {Source::padding, 0, 0}; }
};

class Acceptance {
public:
    static constexpr std::size_t num_confidences = 10;
    static constexpr std::size_t num_lengths = 8;
    static constexpr std::size_t start = num_confidences;  // `before` of a draft's first token

    // Before a model's token is drawn, given what is drafted before it (the bucket of the last token, or `start`).
    double next(std::size_t before) const { return next_[before].mean(); }
    // Of any token of the model.
    double model() const { return model_.mean(); }
    double model_optimistic() const { return model_.optimistic(); }
    // The model has not drafted for a while.
    void forget_model(double factor);
    double of(const Expectation & token) const;

    void observe(const Expectation & token, bool accepted);

    Acceptance();

private:
    std::array<Rate, num_confidences> confidence_;
    std::array<Rate, num_confidences + 1> next_;
    std::array<Rate, 2 * num_lengths> match_;
    Rate model_;
    Rate padding_;
};

}  // namespace specllama
