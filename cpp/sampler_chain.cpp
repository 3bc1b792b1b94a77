// The sampler chain: patch the logits, select the few that survive truncation in single passes, normalise.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "allowed_candidates.hpp"
#include "distribution.hpp"
#include "logits_scan.hpp"

namespace specllama {

namespace {

// Changes single logits and puts them back. llama.cpp's buffer is changed in place because a copy of a whole row
// would cost more than the rest of the chain.
class LogitPatch {
public:
    LogitPatch(float * logits, std::size_t n_vocab) : logits_(logits), n_vocab_(n_vocab) {}
    ~LogitPatch() {
        for (auto entry = saved_.rbegin(); entry != saved_.rend(); ++entry) {
            logits_[entry->id] = entry->logit;
        }
    }
    LogitPatch(const LogitPatch &) = delete;
    LogitPatch & operator=(const LogitPatch &) = delete;

    void bias(const std::vector<std::pair<int32_t, float>> & logit_bias) {
        for (const auto & [token, bias] : logit_bias) {
            if (inside(token)) {
                set(token, logits_[token] + bias);
            }
        }
    }

    void penalise(const SamplerParams & params, const int32_t * recent, std::size_t n_recent) {
        if (!params.has_penalties()) {
            return;
        }
        const std::size_t window = std::min(n_recent, static_cast<std::size_t>(params.penalty_last_n));
        std::vector<int32_t> tokens(recent + (n_recent - window), recent + n_recent);
        std::sort(tokens.begin(), tokens.end());
        for (auto run = tokens.begin(); run != tokens.end();) {
            const auto end = std::upper_bound(run, tokens.end(), *run);
            if (inside(*run)) {
                penalise_one(params, *run, static_cast<float>(end - run));
            }
            run = end;
        }
    }

private:
    bool inside(int32_t token) const { return token >= 0 && static_cast<std::size_t>(token) < n_vocab_; }

    void set(int32_t token, float logit) {
        saved_.push_back({token, logits_[token]});
        logits_[token] = logit;
    }

    void penalise_one(const SamplerParams & params, int32_t token, float count) {
        float logit = logits_[token];
        logit = logit <= 0 ? logit * params.repeat_penalty : logit / params.repeat_penalty;
        set(token, logit - (count * params.frequency_penalty + params.presence_penalty));
    }

    float * logits_;
    std::size_t n_vocab_;
    std::vector<Candidate> saved_;
};

[[noreturn]] void no_token_left() {
    throw std::runtime_error(
        "no token can be sampled: every logit is -inf or NaN. Either logit_bias bans the whole vocabulary, or the "
        "grammar wants a text that no token goes on with, or the model computes NaNs (a damaged file, or a backend "
        "problem: try n_gpu_layers=0)");
}

// The candidates that survive truncation, in descending order. Follows llama.cpp's samplers one by one.
class Truncation {
public:
    Truncation(const SamplerParams & params, const float * logits, std::size_t n)
        : params_(params), logits_(logits), n_(n) {}
    // Of candidates that have been selected before, in descending order.
    Truncation(const SamplerParams & params, std::vector<Candidate> selected)
        : params_(params), logits_(nullptr), n_(0), kept_(std::move(selected)) {}

    std::vector<Candidate> run_on_selected() {
        typical_of_kept();
        top_p_of_kept(0.0);
        min_p_of_kept();
        return std::move(kept_);
    }

    std::vector<Candidate> run() {
        if (params_.top_k > 0) {
            select_top_k(logits_, n_, static_cast<std::size_t>(params_.top_k), kept_);
            return run_on_selected();
        }
        if (params_.typical_p < 1.0F) {
            typical_of_all();
            top_p_of_kept(0.0);
        } else if (params_.top_p < 1.0F) {
            top_p_of_all();
        } else {
            select_by_min_p(largest(logits_, n_));
        }
        min_p_of_kept();
        return std::move(kept_);
    }

private:
    float min_p_threshold(float top) const { return top + std::log(params_.min_p); }

    // min_p above 1 would drop even the top: llama.cpp always keeps one.
    void select_by_min_p(float top) { select_at_least(logits_, n_, std::min(top, min_p_threshold(top)), kept_); }

    // Probabilities of kept_, relative to `sum` of e^(logit - top); 0 means their own sum.
    std::vector<double> probabilities_of_kept(double sum) const {
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

    // How many leading probabilities reach `mass`; 0 if all together do not.
    static std::size_t count_reaching(const std::vector<double> & probs, double mass, bool strictly) {
        double cumulative = 0.0;
        for (std::size_t i = 0; i < probs.size(); ++i) {
            cumulative += probs[i];
            if (strictly ? cumulative > mass : cumulative >= mass) {
                return i + 1;
            }
        }
        return 0;
    }

    // Keeps the shortest prefix with mass top_p. False if kept_ does not reach it.
    bool top_p_of_kept(double sum) {
        if (params_.top_p >= 1.0F || kept_.empty()) {
            return true;
        }
        const std::size_t count = count_reaching(probabilities_of_kept(sum), params_.top_p, false);
        if (count == 0) {
            return false;
        }
        kept_.resize(count);
        return true;
    }

    // Over the whole vocabulary: min-p bounds the selection if it is on, else look at more and more candidates.
    void top_p_of_all() {
        const float top = largest(logits_, n_);
        const double sum = sum_exp(logits_, n_, top, 1.0F);
        if (params_.min_p > 0.0F) {
            select_by_min_p(top);
            top_p_of_kept(sum);
            return;
        }
        for (std::size_t count = 256;; count *= 8) {
            select_top_k(logits_, n_, count, kept_);
            if (kept_.empty() || top_p_of_kept(sum) || count >= n_) {
                return;
            }
        }
    }

    void min_p_of_kept() {
        if (params_.min_p <= 0.0F || kept_.empty()) {
            return;
        }
        const float threshold = min_p_threshold(kept_.front().logit);
        const auto first_below = std::find_if(kept_.begin() + 1, kept_.end(),
                                              [threshold](const Candidate & c) { return c.logit < threshold; });
        kept_.erase(first_below, kept_.end());
    }

    // Locally typical sampling (Meister et al. 2022, arXiv 2202.00666) among the candidates that top-k left.
    void typical_of_kept() {
        if (params_.typical_p >= 1.0F || kept_.empty()) {
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

    // The same over the whole vocabulary, looking at more and more candidates.
    void typical_of_all() {
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

    const SamplerParams & params_;
    const float * logits_;
    std::size_t n_;
    std::vector<Candidate> kept_;
};

void one_hot(int32_t token, Distribution & out) {
    out.ids.assign(1, token);
    out.probs.assign(1, 1.0);
}

void normalise(std::vector<double> & probs, double sum) {
    if (!(sum > 0.0) || !std::isfinite(sum)) {
        no_token_left();
    }
    const double inverse = 1.0 / sum;
    for (double & p : probs) {
        p *= inverse;
    }
}

// softmax(logits / temperature) over the whole vocabulary.
void dense_softmax(const float * logits, std::size_t n, float temperature, Distribution & out) {
    const float top = largest(logits, n);
    if (!std::isfinite(top)) {
        no_token_left();
    }
    out.ids.clear();
    const float scale = std::min(1.0F / temperature, std::numeric_limits<float>::max());  // keeps 0 * scale at 0
    const double sum = exp_all(logits, n, top, scale, out.probs);
    normalise(out.probs, sum);
}

void sparse_softmax(const std::vector<Candidate> & kept, float temperature, Distribution & out) {
    if (kept.empty()) {
        no_token_left();
    }
    out.ids.clear();
    out.probs.clear();
    double sum = 0.0;
    for (const Candidate & candidate : kept) {
        const double logit = static_cast<double>(candidate.logit) - kept.front().logit;
        out.ids.push_back(candidate.id);
        out.probs.push_back(std::exp(logit / temperature));
        sum += out.probs.back();
    }
    normalise(out.probs, sum);
}

// What the chain makes of logits with bias and penalties.
void distribute(const SamplerParams & params, const float * logits, std::size_t n_vocab, Distribution & out) {
    if (params.temperature == 0.0F) {
        const int32_t best = argmax(logits, n_vocab);
        if (best < 0) {
            no_token_left();
        }
        one_hot(best, out);
    } else if (params.temperature < 0.0F) {
        dense_softmax(logits, n_vocab, 1.0F, out);
    } else if (!params.truncates()) {
        dense_softmax(logits, n_vocab, params.temperature, out);
    } else {
        sparse_softmax(Truncation(params, logits, n_vocab).run(), params.temperature, out);
    }
}

// The same of those that are allowed.
void distribute_allowed(const SamplerParams & params, const Allowance & allowance, const float * logits,
                        std::size_t n_vocab, Distribution & out) {
    const bool all_count =
        params.temperature < 0.0F || !params.truncates() || (params.top_k <= 0 && params.typical_p < 1.0F);
    if (params.temperature == 0.0F) {
        const std::vector<Candidate> best = select_allowed(allowance, params, logits, n_vocab);
        if (best.empty()) {
            no_token_left();
        }
        one_hot(best.front().id, out);
    } else if (all_count) {
        std::vector<float> allowed;
        keep_allowed(allowance, logits, n_vocab, allowed);
        distribute(params, allowed.data(), n_vocab, out);
    } else {
        Truncation truncation(params, select_allowed(allowance, params, logits, n_vocab));
        sparse_softmax(truncation.run_on_selected(), params.temperature, out);
    }
}

}  // namespace

SamplerChain::SamplerChain(SamplerParams params, LogitsProcessor logits_processor,
                           std::shared_ptr<Constraint> constraint)
    : params_(std::move(params)), logits_processor_(std::move(logits_processor)), constraint_(std::move(constraint)) {
    params_.validate();
}

void SamplerChain::apply(float * logits, std::size_t n_vocab, const int32_t * recent, std::size_t n_recent,
                         Distribution & out) const {
    std::vector<float> processed;
    if (logits_processor_) {
        processed.assign(logits, logits + n_vocab);
        logits_processor_(recent, n_recent, processed);
        logits = processed.data();
    }
    LogitPatch patch(logits, n_vocab);
    patch.bias(params_.logit_bias);
    patch.penalise(params_, recent, n_recent);
    if (constraint_) {
        distribute_allowed(params_, {*constraint_, recent, n_recent}, logits, n_vocab, out);
    } else {
        distribute(params_, logits, n_vocab, out);
    }
}

}  // namespace specllama
