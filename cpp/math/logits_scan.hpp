// Single passes over the logits of a whole vocabulary, written so that compilers vectorise them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace specllama {

struct Candidate {
    int32_t id;
    float logit;
};

// The order of candidates: descending by logit, and ascending by id where logits are equal. It is a total order, so
// selections do not depend on the algorithm.
inline bool ranks_before(const Candidate & a, const Candidate & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The largest finite logit, or -inf if there is none. NaNs are passed over.
float largest(const float * logits, std::size_t n);

// The id of the largest logit (the lowest such id), or -1 if every logit is -inf or NaN.
int32_t argmax(const float * logits, std::size_t n);

// The k largest finite logits, sorted.
void select_top_k(const float * logits, std::size_t n, std::size_t k, std::vector<Candidate> & out);

// Every logit >= threshold, sorted.
void select_at_least(const float * logits, std::size_t n, float threshold, std::vector<Candidate> & out);

// e^x to within 2 units in the last place; 0 below -87 (so e^-inf is 0).
float fast_exp(float x);

// sum_x exp(scale * (logits[x] - shift)).
double sum_exp(const float * logits, std::size_t n, float shift, float scale);

// sum_x exp(logits[x] - shift) to within a thousandth, in a third of the time: for what is only learned from.
double rough_sum_exp(const float * logits, std::size_t n, float shift);

// out[x] = exp(scale * (logits[x] - shift)); returns the sum.
double exp_all(const float * logits, std::size_t n, float shift, float scale, std::vector<double> & out);

// The entropy, in nats, of softmax(logits), given the largest logit and sum_exp(logits, n, largest, 1).
double entropy(const float * logits, std::size_t n, float largest, double sum);

// The standard deviation of the finite logits; 0 if there is none.
double standard_deviation(const float * logits, std::size_t n);

// The k candidates whose surprise -log softmax(x) is nearest to `entropy` (locally typical sampling), nearest first.
void select_typical(const float * logits, std::size_t n, float log_sum, float entropy, std::size_t k,
                    std::vector<Candidate> & out);

}  // namespace specllama
