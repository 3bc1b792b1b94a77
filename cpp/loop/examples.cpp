// What a head can learn from a text.
#include "loop/examples.hpp"

#include <algorithm>
#include <cmath>

namespace specllama {

void Examples::add(std::size_t place, const float * state, const float * logits, std::size_t n_vocab) {
    select_top_k(logits, n_vocab, num_likely_, best_);
    const float top = best_.empty() ? 0.0F : best_.front().logit;
    const double sum = rough_sum_exp(logits, n_vocab, top);
    for (const Candidate & one : best_) {
        likely.push_back(one.id);
        shares.push_back(static_cast<float>(std::exp(static_cast<double>(one.logit) - top) / sum));
    }
    likely.resize((size() + 1) * num_likely_, 0);
    shares.resize((size() + 1) * num_likely_, 0.0F);
    states.insert(states.end(), state, state + state_size_);
    places.push_back(static_cast<std::int32_t>(place));
}

void Examples::forget_from(std::size_t place) {
    const auto end = std::lower_bound(places.begin(), places.end(), static_cast<std::int32_t>(place));
    places.erase(end, places.end());
    states.resize(size() * state_size_);
    likely.resize(size() * num_likely_);
    shares.resize(size() * num_likely_);
}

}  // namespace specllama
