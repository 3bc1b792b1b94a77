// Selects the candidates that a constraint allows and that can still be chosen.
#include "math/allowed_candidates.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace specllama {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
constexpr std::size_t smallest_chunk = 8;
constexpr std::size_t first_chunk = 64;
constexpr std::size_t growth = 4;

// How many of the allowed candidates min-p leaves. `all` if a candidate that has not been tested (its logit is at most
// `bound`) could be left, too.
std::size_t left_by_min_p(const SamplerParams & params, const std::vector<Candidate> & allowed, float bound) {
    const float threshold = allowed.front().logit + std::log(params.min_p);
    if (params.min_p <= 0.0F || bound >= threshold) {
        return all;
    }
    const auto below = std::find_if(allowed.begin() + 1, allowed.end(),
                                    [threshold](const Candidate & c) { return c.logit < threshold; });
    return static_cast<std::size_t>(below - allowed.begin());
}

// How many of the allowed candidates top-p leaves. unseen: the weight e^logit of all further candidates together,
// relative to the weight of the first allowed one.
std::size_t left_by_top_p(const SamplerParams & params, const std::vector<Candidate> & allowed, double unseen) {
    double sum = unseen;
    for (const Candidate & candidate : allowed) {
        sum += std::exp(static_cast<double>(candidate.logit) - allowed.front().logit);
    }
    double cumulative = 0.0;
    for (std::size_t i = 0; i < allowed.size(); ++i) {
        cumulative += std::exp(static_cast<double>(allowed[i].logit) - allowed.front().logit);
        if (cumulative / sum >= params.top_p) {
            return i + 1;
        }
    }
    return all;
}

// Bounds of the weights e^logit of the candidates that have not been tested.
class Untested {
public:
    Untested(const float * logits, std::size_t n, float largest) : logits_(logits), n_(n), largest_(largest) {}

    void test(const Candidate * candidates, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            tested_ += std::exp(static_cast<double>(candidates[i].logit) - largest_);
        }
        bound_ = candidates[count - 1].logit;
    }

    float bound() const { return bound_; }

    // An upper bound of the weight of `more` untested candidates together, relative to e^top.
    double weight(std::size_t more, float top) const {
        return static_cast<double>(more) * std::exp(static_cast<double>(bound_) - top);
    }

    // The weight of all untested candidates together, relative to e^top. The first call passes over the whole
    // vocabulary.
    double weight_of_all(float top) {
        if (total_ < 0.0) {
            total_ = sum_exp(logits_, n_, largest_, 1.0F);
        }
        const double by_sum = std::max(0.0, total_ - tested_) + rounding * total_;
        return by_sum * std::exp(static_cast<double>(largest_) - top);
    }

private:
    static constexpr double rounding = 1e-5;  // a generous bound of the rounding error of float32 sums

    const float * logits_;
    std::size_t n_;
    float largest_;
    float bound_ = 0.0F;   // no untested candidate has a larger logit
    double tested_ = 0.0;  // the weight of the tested candidates, relative to e^largest
    double total_ = -1.0;  // the weight of all candidates, relative to e^largest; negative while it is not known
};

// Whether the result of top-p and min-p is settled: whichever untested candidates the constraint allows, the same
// candidates of `allowed` are left, and no others. At most `more` untested candidates could be selected.
bool settled(const SamplerParams & params, const std::vector<Candidate> & allowed, std::size_t more,
             Untested & untested) {
    if (allowed.empty() || params.typical_p < 1.0F) {
        return false;
    }
    const std::size_t by_min_p = left_by_min_p(params, allowed, untested.bound());
    if (params.top_p >= 1.0F) {
        return by_min_p != all;
    }
    const auto most_left = [&](double unseen) { return std::min(by_min_p, left_by_top_p(params, allowed, unseen)); };
    const std::size_t most = most_left(0.0);
    const float top = allowed.front().logit;
    return most != all && (most == most_left(untested.weight(more, top)) ||
                           most == most_left(std::min(untested.weight(more, top), untested.weight_of_all(top))));
}

std::size_t number_wanted(const SamplerParams & params, std::size_t n) {
    if (params.temperature == 0.0F) {
        return 1;
    }
    return params.top_k > 0 ? std::min(static_cast<std::size_t>(params.top_k), n) : n;
}

}  // namespace

void Allowance::forbid(Candidate * candidates, std::size_t count) const {
    if (listed == nullptr) {
        constraint.forbid(recent, n_recent, candidates, count);
        return;
    }
    std::vector<Candidate> named(candidates, candidates + count);
    for (Candidate & candidate : named) {
        candidate.id = listed->token(static_cast<std::size_t>(candidate.id));
    }
    constraint.forbid(recent, n_recent, named.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
        candidates[i].logit = named[i].logit;
    }
}

std::vector<Candidate> select_allowed(const Allowance & allowance, const SamplerParams & params, const float * logits,
                                      std::size_t n) {
    const std::size_t wanted = number_wanted(params, n);
    Untested untested(logits, n, largest(logits, n));
    std::vector<Candidate> best;
    std::vector<Candidate> allowed;
    std::size_t tested = 0;
    for (std::size_t count = std::clamp(wanted, smallest_chunk, first_chunk);; count *= growth) {
        select_top_k(logits, n, count, best);
        const std::size_t chunk = best.size() - tested;
        if (chunk == 0) {
            return allowed;  // there are no more candidates
        }
        untested.test(best.data() + tested, chunk);
        allowance.forbid(best.data() + tested, chunk);
        std::copy_if(best.begin() + static_cast<std::ptrdiff_t>(tested), best.end(), std::back_inserter(allowed),
                     [](const Candidate & candidate) { return candidate.logit > minus_infinity; });
        tested = best.size();
        if (allowed.size() >= wanted) {
            allowed.resize(wanted);
            return allowed;
        }
        if (settled(params, allowed, std::min(wanted - allowed.size(), n - tested), untested)) {
            return allowed;
        }
    }
}

void keep_allowed(const Allowance & allowance, const float * logits, std::size_t n, std::vector<float> & out) {
    std::vector<Candidate> candidates;
    candidates.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
        if (logits[i] > minus_infinity) {
            candidates.push_back({static_cast<int32_t>(i), logits[i]});
        }
    }
    allowance.forbid(candidates.data(), candidates.size());
    out.assign(n, minus_infinity);
    for (const Candidate & candidate : candidates) {
        out[candidate.id] = candidate.logit;
    }
}

}  // namespace specllama
