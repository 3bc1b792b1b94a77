// Truncation: llama.cpp's top-n-sigma, top-k, typical, top-p and min-p are applied one after the other.
#include "math/truncation.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace specllama {

namespace {

constexpr float kRounding = 1e-5F;

// How many of the first probabilities reach `mass` together; 0 if even all of them do not.
std::size_t count_reaching(const std::vector<double> & probs, double mass, bool strictly) {
    double cumulative = 0.0;
    for (std::size_t i = 0; i < probs.size(); ++i) {
        cumulative += probs[i];
        if (strictly ? cumulative > mass : cumulative >= mass) {
            return i + 1;
        }
    }
    return 0;
}

}  // namespace

std::vector<Candidate> Truncation::run() {
    const std::array<Step, 5> steps{{
        {params_.has_sigma(), &Truncation::sigma_of_all, nullptr},
        {params_.top_k > 0, &Truncation::top_k_of_all, &Truncation::top_k_of_kept},
        {params_.typical_p < 1.0F, &Truncation::typical_of_all, &Truncation::typical_of_kept},
        {params_.top_p < 1.0F, &Truncation::top_p_of_all, &Truncation::top_p_of_kept},
        {params_.min_p > 0.0F, &Truncation::min_p_of_all, &Truncation::min_p_of_kept},
    }};
    for (const Step & step : steps) {
        if (step.is_on) {
            (this->*(is_selected_ ? step.of_kept : step.of_all))();
            is_selected_ = true;
        }
    }
    return std::move(kept_);
}

float Truncation::min_p_threshold(float top) const { return top + std::log(params_.min_p); }

// A min_p above 1 would drop even the best candidate, but llama.cpp always keeps one.
void Truncation::select_by_min_p(float top) {
    select_at_least(logits_, n_, std::min(top, min_p_threshold(top)), kept_);
}

// Keeps the best top_k of the candidates that lie within top_n_sigma standard deviations of the largest logit.
void Truncation::sigma_of_all() {
    const float reach = params_.top_n_sigma * static_cast<float>(standard_deviation(logits_, n_));
    // If there are only two tokens, one lies exactly two deviations below the other. Rounding must not decide whether
    // that token is kept.
    const float threshold = largest(logits_, n_) - reach - kRounding * std::max(1.0F, reach);
    if (params_.top_k <= 0) {
        select_at_least(logits_, n_, threshold, kept_);
        return;
    }
    top_k_of_all();
    const auto first_below =
        std::find_if(kept_.begin(), kept_.end(), [threshold](const Candidate & c) { return c.logit < threshold; });
    kept_.erase(first_below, kept_.end());
}

void Truncation::top_k_of_all() { select_top_k(logits_, n_, static_cast<std::size_t>(params_.top_k), kept_); }

void Truncation::top_k_of_kept() { kept_.resize(std::min(kept_.size(), static_cast<std::size_t>(params_.top_k))); }

// The probabilities of kept_: e^(logit - top) / sum. A `sum` of 0 stands for the sum over kept_.
std::vector<double> Truncation::probabilities_of_kept(double sum) const {
    std::vector<double> probs;
    probs.reserve(kept_.size());
    double total = 0.0;
    for (const Candidate & candidate : kept_) {
        probs.push_back(std::exp(static_cast<double>(candidate.logit) - kept_.front().logit));
        total += probs.back();
    }
    for (double & p : probs) {
        p /= sum > 0.0 ? sum : total;
    }
    return probs;
}

// Keeps the shortest prefix with mass top_p. Returns false if kept_ has less mass than that.
bool Truncation::reach_top_p(double sum) {
    if (kept_.empty()) {
        return true;
    }
    const std::size_t count = count_reaching(probabilities_of_kept(sum), params_.top_p, false);
    if (count == 0) {
        return false;
    }
    kept_.resize(count);
    return true;
}

// Applies top-p to the whole vocabulary. If min-p is on, only the candidates that it leaves are looked at; else more
// and more of the best ones, until they reach top_p.
void Truncation::top_p_of_all() {
    const float top = largest(logits_, n_);
    const double sum = sum_exp(logits_, n_, top, 1.0F);
    if (params_.min_p > 0.0F) {
        select_by_min_p(top);
        reach_top_p(sum);
        return;
    }
    for (std::size_t count = 256;; count *= 8) {
        select_top_k(logits_, n_, count, kept_);
        if (kept_.empty() || reach_top_p(sum) || count >= n_) {
            return;
        }
    }
}

void Truncation::min_p_of_all() {
    select_by_min_p(largest(logits_, n_));
    min_p_of_kept();
}

void Truncation::min_p_of_kept() {
    if (kept_.empty()) {
        return;
    }
    const float threshold = min_p_threshold(kept_.front().logit);
    const auto first_below =
        std::find_if(kept_.begin() + 1, kept_.end(), [threshold](const Candidate & c) { return c.logit < threshold; });
    kept_.erase(first_below, kept_.end());
}

// Applies locally typical sampling (Meister et al. 2022, arXiv 2202.00666) to the candidates that top-k has left.
void Truncation::typical_of_kept() {
    if (kept_.empty()) {
        return;
    }
    const std::vector<double> probs = probabilities_of_kept(0.0);
    double entropy = 0.0;
    for (const double p : probs) {
        entropy -= p > 0.0 ? p * std::log(p) : 0.0;
    }
    std::vector<std::size_t> order(kept_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    const auto distance = [&](std::size_t i) { return std::fabs(-std::log(probs[i]) - entropy); };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
    std::vector<Candidate> nearest;
    double cumulative = 0.0;
    for (const std::size_t i : order) {
        nearest.push_back(kept_[i]);
        cumulative += probs[i];
        if (cumulative > params_.typical_p) {
            break;
        }
    }
    std::sort(nearest.begin(), nearest.end(), ranks_before);
    kept_ = std::move(nearest);
}

// Applies locally typical sampling to the whole vocabulary, by looking at more and more candidates.
void Truncation::typical_of_all() {
    const float top = largest(logits_, n_);
    const double sum = sum_exp(logits_, n_, top, 1.0F);
    const double surprise = entropy(logits_, n_, top, sum);
    const double log_sum = top + std::log(sum);
    for (std::size_t count = 256; kept_.empty(); count *= 8) {
        select_typical(logits_, n_, static_cast<float>(log_sum), static_cast<float>(surprise), count, kept_);
        std::vector<double> probs;
        probs.reserve(kept_.size());
        for (const Candidate & candidate : kept_) {
            probs.push_back(std::exp(candidate.logit - log_sum));
        }
        const std::size_t reaching = count_reaching(probs, params_.typical_p, true);
        if (reaching > 0) {
            kept_.resize(reaching);
        } else if (count < n_) {
            kept_.clear();
        } else {
            break;
        }
    }
    std::sort(kept_.begin(), kept_.end(), ranks_before);
}

}  // namespace specllama
