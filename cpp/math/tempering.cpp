// The end of the sampler chain: XTC and the temperature, fixed or dynamic as in llama.cpp, turn candidates into
// probabilities.
#include "math/tempering.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace specllama {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr float largest_float = std::numeric_limits<float>::max();

void normalise(std::vector<double> & probs, double sum) {
    if (!(sum > 0.0) || !std::isfinite(sum)) {
        no_token_left();
    }
    const double inverse = 1.0 / sum;
    for (double & p : probs) {
        p *= inverse;
    }
}

// llama.cpp's entropy-based temperature (by kalomaze): the surer the model, the lower the temperature. `slots`: the
// number of candidates. The entropy is divided by their largest possible entropy, log(slots).
double temperature_at(const SamplerParams & params, double entropy, std::size_t slots) {
    const double lowest = std::max(0.0F, params.temperature - params.dynatemp_range);
    const double highest = static_cast<double>(params.temperature) + params.dynatemp_range;
    const double share = std::max(0.0, entropy) / std::log(static_cast<double>(slots));
    return lowest + (highest - lowest) * std::pow(share, params.dynatemp_exponent);
}

// Candidates in descending order, with their weights e^(logit - first).
struct Weighed {
    const Candidate * begin;
    std::size_t count;

    double logit(std::size_t i) const { return static_cast<double>(begin[i].logit) - begin[0].logit; }
    double sum() const {
        double total = 0.0;
        for (std::size_t i = 0; i < count; ++i) {
            total += std::exp(logit(i));
        }
        return total;
    }
    double entropy() const {
        const double total = sum();
        double weighted = 0.0;
        for (std::size_t i = 0; i < count; ++i) {
            weighted += std::exp(logit(i)) * logit(i);
        }
        return std::log(total) - weighted / total;
    }
};

// softmax(logits / temperature). A dynamic temperature follows from the entropy of these candidates.
void temper_some(const SamplerParams & params, const Weighed & kept, std::size_t slots, std::vector<double> & probs) {
    double temperature = params.temperature;
    if (params.dynatemp_range > 0.0F && kept.count > 1) {
        temperature = temperature_at(params, kept.entropy(), slots);
    }
    probs.assign(1, 1.0);
    double sum = 1.0;
    for (std::size_t i = 1; i < kept.count; ++i) {
        probs.push_back(temperature > 0.0 ? std::exp(kept.logit(i) / temperature) : 0.0);
        sum += probs.back();
    }
    normalise(probs, sum);
}

// How many candidates XTC takes away, from the first on.
std::size_t num_excluded(const SamplerParams & params, const Weighed & kept) {
    if (!params.has_xtc()) {
        return 0;
    }
    const double sum = kept.sum();
    std::size_t reaching = 0;
    while (reaching < kept.count && std::exp(kept.logit(reaching)) / sum >= params.xtc_threshold) {
        ++reaching;
    }
    return reaching > 0 ? reaching - 1 : 0;
}

// probs = (1 - share) probs + share others. `others` is shorter: it lacks entries for the first tokens of `probs`, and
// counts as 0 there.
void mix(std::vector<double> & probs, const std::vector<double> & others, double share) {
    const std::size_t first = probs.size() - others.size();
    for (std::size_t i = 0; i < probs.size(); ++i) {
        probs[i] = (1.0 - share) * probs[i] + (i < first ? 0.0 : share * others[i - first]);
    }
}

// Sorts by descending probability, and drops the tokens with probability 0.
void sort_and_shrink(Distribution & out) {
    std::vector<std::size_t> order(out.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&out](std::size_t a, std::size_t b) { return out.probs[a] > out.probs[b]; });
    Distribution sorted;
    for (const std::size_t i : order) {
        if (out.probs[i] > 0.0) {
            sorted.ids.push_back(out.ids[i]);
            sorted.probs.push_back(out.probs[i]);
        }
    }
    out = std::move(sorted);
}

// The number of candidates in llama.cpp's array, on which the dynamic temperature depends. The array keeps candidates
// that are ruled out, until a sampler cuts it by probability.
std::size_t num_slots(const SamplerParams & params, std::size_t num_kept, std::size_t n_vocab) {
    if (params.looks_at_probabilities()) {
        return num_kept;
    }
    return params.top_k > 0 ? std::min(static_cast<std::size_t>(params.top_k), n_vocab) : n_vocab;
}

void temper_all(const SamplerParams & params, const float * logits, std::size_t n, std::size_t slots,
                std::vector<double> & probs) {
    const float top = largest(logits, n);
    if (!std::isfinite(top)) {
        no_token_left();
    }
    float temperature = params.temperature;
    if (params.dynatemp_range > 0.0F && slots > 1) {
        const double surprise = entropy(logits, n, top, sum_exp(logits, n, top, 1.0F));
        temperature = static_cast<float>(std::min<double>(temperature_at(params, surprise, slots), largest_float));
    }
    const float scale = std::min(1.0F / temperature, largest_float);  // finite, so that 0 * scale is 0
    normalise(probs, exp_all(logits, n, top, scale, probs));
}

// The candidates that XTC takes away.
std::vector<Candidate> excluded(const SamplerParams & params, const float * logits, std::size_t n) {
    std::vector<Candidate> reaching;
    if (params.has_xtc()) {
        const float top = largest(logits, n);
        const double threshold = top + std::log(params.xtc_threshold * sum_exp(logits, n, top, 1.0F));
        select_at_least(logits, n, static_cast<float>(threshold), reaching);
    }
    if (!reaching.empty()) {
        reaching.pop_back();
    }
    return reaching;
}

}  // namespace

void temper(const SamplerParams & params, const std::vector<Candidate> & kept, std::size_t n_vocab,
            Distribution & out) {
    if (kept.empty()) {
        no_token_left();
    }
    out.ids.clear();
    for (const Candidate & candidate : kept) {
        out.ids.push_back(candidate.id);
    }
    const Weighed all{kept.data(), kept.size()};
    const std::size_t slots = num_slots(params, kept.size(), n_vocab);
    temper_some(params, all, slots, out.probs);
    if (const std::size_t count = num_excluded(params, all); count > 0) {
        std::vector<double> others;
        temper_some(params, {kept.data() + count, kept.size() - count}, slots - count, others);
        mix(out.probs, others, params.xtc_probability);
        sort_and_shrink(out);
    }
}

void temper(const SamplerParams & params, const float * logits, std::size_t n_vocab, Distribution & out) {
    out.ids.clear();
    temper_all(params, logits, n_vocab, n_vocab, out.probs);
    if (const std::vector<Candidate> away = excluded(params, logits, n_vocab); !away.empty()) {
        std::vector<float> left(logits, logits + n_vocab);
        for (const Candidate & candidate : away) {
            left[candidate.id] = minus_infinity;
        }
        std::vector<double> others;
        temper_all(params, left.data(), n_vocab, n_vocab - away.size(), others);
        mix(out.probs, others, params.xtc_probability);
    }
}

void softmax(const float * logits, std::size_t n_vocab, Distribution & out) {
    out.ids.clear();
    SamplerParams plain;
    plain.temperature = 1.0F;
    temper_all(plain, logits, n_vocab, n_vocab, out.probs);
}

void no_token_left() {
    throw NoTokenLeft(
        "no token can be sampled: every logit is -inf or NaN. Either logit_bias bans the whole vocabulary, or the "
        "grammar wants a text that no token goes on with, or the model computes NaNs (a damaged file, or a backend "
        "problem: try n_gpu_layers=0)");
}

}  // namespace specllama
