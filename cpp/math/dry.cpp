// DRY ("don't repeat yourself"): the longer the repetition that a token would continue, the less likely the token
// becomes.
#include "math/dry.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_map>

namespace specllama {

namespace {

using Tokens = std::vector<int32_t>;

// The part of the text that DRY sees, the last token first.
Tokens backwards(const SamplerParams & params, const int32_t * recent, std::size_t n_recent) {
    const std::size_t all = n_recent + params.dry_prompt.size();
    const std::size_t count =
        params.dry_penalty_last_n < 0 ? all : std::min(static_cast<std::size_t>(params.dry_penalty_last_n), all);
    const auto of_recent = static_cast<std::ptrdiff_t>(std::min(count, n_recent));
    const auto of_prompt = static_cast<std::ptrdiff_t>(count) - of_recent;
    Tokens tokens(std::make_reverse_iterator(recent + n_recent),
                  std::make_reverse_iterator(recent + n_recent) + of_recent);
    tokens.insert(tokens.end(), params.dry_prompt.rbegin(), params.dry_prompt.rbegin() + of_prompt);
    return tokens;
}

// The Z-function. Entry k is the number of tokens at the end of the text that equal the tokens that end k tokens
// earlier.
std::vector<std::size_t> repeated(const Tokens & tokens) {
    std::vector<std::size_t> lengths(tokens.size(), 0);
    std::size_t left = 0;
    std::size_t right = 0;  // the tokens [left, right) are known to equal the first ones
    for (std::size_t k = 1; k < tokens.size(); ++k) {
        std::size_t length = k < right ? std::min(lengths[k - left], right - k) : 0;
        while (k + length < tokens.size() && tokens[length] == tokens[k + length]) {
            ++length;
        }
        if (k + length > right) {
            left = k;
            right = k + length;
        }
        lengths[k] = length;
    }
    return lengths;
}

float penalty(const SamplerParams & params, std::size_t length) {
    constexpr float log_of_largest = 88.7228391F;
    auto exponent = static_cast<int>(length) - params.dry_allowed_length;
    if (params.dry_base > 1.000001F) {
        exponent = std::min(exponent, static_cast<int>(log_of_largest / std::log(params.dry_base)));
    }
    return static_cast<float>(static_cast<double>(params.dry_multiplier) *
                              std::pow(static_cast<double>(params.dry_base), exponent));
}

}  // namespace

std::vector<std::pair<int32_t, float>> dry_penalties(const SamplerParams & params, const int32_t * recent,
                                                     std::size_t n_recent) {
    const Tokens tokens = backwards(params, recent, n_recent);
    const auto allowed = static_cast<std::size_t>(params.dry_allowed_length);
    const std::size_t most = params.dry_breakers ? params.dry_breakers->num_behind(tokens) : tokens.size();
    if (tokens.size() <= allowed || most < allowed) {
        return {};
    }
    const std::vector<std::size_t> lengths = repeated(tokens);
    std::unordered_map<int32_t, std::size_t> longest;  // by token: the longest repetition that the token would continue
    for (std::size_t k = 1; k < tokens.size(); ++k) {
        const std::size_t length = std::min(lengths[k], most);
        if (length >= allowed) {
            std::size_t & known = longest[tokens[k - 1]];
            known = std::max(known, length);
        }
    }
    std::vector<std::pair<int32_t, float>> penalties;
    for (const auto & [token, length] : longest) {
        if (!params.dry_breakers || !params.dry_breakers->breaks_alone(token)) {
            penalties.emplace_back(token, penalty(params, length));
        }
    }
    return penalties;
}

}  // namespace specllama
