// The sampler chain: patch the logits, select the few candidates that survive truncation, turn their logits into
// probabilities.
#include "math/sampler_chain.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "math/allowed_candidates.hpp"
#include "math/dry.hpp"
#include "math/logits_scan.hpp"
#include "math/tempering.hpp"
#include "math/truncation.hpp"

namespace specllama {

namespace {

// Changes single logits and puts them back. llama.cpp's buffer is changed in place because a copy of a whole row
// would cost more than the rest of the chain.
class LogitPatch {
public:
    // listed: the tokens that `logits` [n] belong to; null: the whole vocabulary.
    LogitPatch(const TokenList * listed, float * logits, std::size_t n) : listed_(listed), logits_(logits), n_(n) {}
    ~LogitPatch() {
        for (auto entry = saved_.rbegin(); entry != saved_.rend(); ++entry) {
            logits_[entry->first] = entry->second;
        }
    }
    LogitPatch(const LogitPatch &) = delete;
    LogitPatch & operator=(const LogitPatch &) = delete;

    void bias(const std::vector<std::pair<int32_t, float>> & logit_bias) {
        for (const auto & [token, bias] : logit_bias) {
            if (const auto place = place_of(token)) {
                set(*place, logits_[*place] + bias);
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
            if (const auto place = place_of(*run)) {
                penalise_one(params, *place, static_cast<float>(end - run));
            }
            run = end;
        }
    }

    void penalise_repetitions(const SamplerParams & params, const int32_t * recent, std::size_t n_recent) {
        if (!params.has_dry()) {
            return;
        }
        for (const auto & [token, penalty] : dry_penalties(params, recent, n_recent)) {
            if (const auto place = place_of(token)) {
                set(*place, logits_[*place] - penalty);
            }
        }
    }

private:
    // The index of the token's logit; nothing if the token has none.
    std::optional<std::size_t> place_of(int32_t token) const {
        const auto place = listed_ != nullptr ? listed_->place_of(token) : std::optional<std::size_t>(token);
        return token >= 0 && place && *place < n_ ? place : std::nullopt;
    }

    void set(std::size_t place, float logit) {
        saved_.emplace_back(place, logits_[place]);
        logits_[place] = logit;
    }

    void penalise_one(const SamplerParams & params, std::size_t place, float count) {
        const float before = logits_[place];
        const float logit = before <= 0 ? before * params.repeat_penalty : before / params.repeat_penalty;
        set(place, logit - (count * params.frequency_penalty + params.presence_penalty));
    }

    const TokenList * listed_ = nullptr;
    float * logits_;
    std::size_t n_;
    std::vector<std::pair<std::size_t, float>> saved_;
};

void one_hot(int32_t token, Distribution & out) {
    out.ids.assign(1, token);
    out.probs.assign(1, 1.0);
}

// Makes a distribution of logits to which bias and penalties have been applied, without a constraint.
void distribute(const SamplerParams & params, const float * logits, std::size_t n_vocab, Distribution & out) {
    if (params.temperature == 0.0F) {
        const int32_t best = argmax(logits, n_vocab);
        if (best < 0) {
            no_token_left();
        }
        one_hot(best, out);
    } else if (params.temperature < 0.0F) {
        softmax(logits, n_vocab, out);
    } else if (!params.truncates()) {
        temper(params, logits, n_vocab, out);
    } else {
        temper(params, Truncation(params, logits, n_vocab).run(), n_vocab, out);
    }
}

// Does what distribute() does, but only with the tokens that the constraint allows.
void distribute_allowed(const SamplerParams & params, const Allowance & allowance, const float * logits,
                        std::size_t n_vocab, Distribution & out) {
    const bool all_count = params.temperature < 0.0F || !params.truncates() || params.has_sigma() ||
                           (params.top_k <= 0 && params.typical_p < 1.0F);
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
        temper(params, truncation.run(), n_vocab, out);
    }
}

// Replaces places in the list by token ids.
void name_tokens(const TokenList & listed, Distribution & out) {
    for (int32_t & id : out.ids) {
        id = listed.token(static_cast<std::size_t>(id));
    }
    if (out.dense()) {
        std::vector<double> all(static_cast<std::size_t>(listed.token(out.size() - 1)) + 1, 0.0);
        for (std::size_t i = 0; i < out.size(); ++i) {
            all[static_cast<std::size_t>(listed.token(i))] = out.probs[i];
        }
        out.probs = std::move(all);
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
    apply_to(nullptr, logits, n_vocab, recent, n_recent, out);
}

void SamplerChain::apply(const TokenList & listed, float * logits, std::size_t n, const int32_t * recent,
                         std::size_t n_recent, Distribution & out) const {
    apply_to(&listed, logits, n, recent, n_recent, out);
    name_tokens(listed, out);
}

// Afterwards `out.ids` are indices of `logits`, not token ids.
void SamplerChain::apply_to(const TokenList * listed, float * logits, std::size_t n, const int32_t * recent,
                            std::size_t n_recent, Distribution & out) const {
    LogitPatch patch(listed, logits, n);
    patch.bias(params_.logit_bias);
    patch.penalise(params_, recent, n_recent);
    patch.penalise_repetitions(params_, recent, n_recent);
    if (constraint_ && !constraint_->allows_all(recent, n_recent)) {
        distribute_allowed(params_, {*constraint_, recent, n_recent, listed}, logits, n, out);
    } else {
        distribute(params_, logits, n, out);
    }
}

}  // namespace specllama
