// Checks sampling parameters: everything that would put a NaN into the distribution is refused.
#include "sampler_params.hpp"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace specllama {

namespace {

[[noreturn]] void refuse(const char * name, double value, const char * allowed) {
    std::ostringstream message;
    message << name << "=" << value << " is not a usable value: it must be " << allowed;
    throw std::invalid_argument(message.str());
}

void require_share(const char * name, float value, const char * allowed) {
    if (!(value >= 0.0F && value <= 1.0F)) {
        refuse(name, value, allowed);
    }
}

void validate_dry(const DryParams & dry) {
    // Below 0 it would reward repetitions, by amounts that overflow.
    if (!std::isfinite(dry.multiplier) || dry.multiplier < 0.0F) {
        refuse("dry_multiplier", dry.multiplier, "a finite number, 0 (off) or more");
    }
    if (!std::isfinite(dry.base) || dry.base < 1.0F) {
        refuse("dry_base", dry.base, "a finite number of at least 1");
    }
    if (dry.allowed_length < 0) {
        refuse("dry_allowed_length", dry.allowed_length, "a number of tokens, 0 or more");
    }
    if (dry.penalty_last_n < -1) {
        refuse("dry_penalty_last_n", dry.penalty_last_n,
               "a number of tokens, 0 (off), or -1 (prompt and text as a whole)");
    }
}

}  // namespace

void SamplerParams::validate() const {
    // +inf would make every kept token equally likely by way of inf - inf; -inf only means "below 0".
    if (std::isnan(temperature) || (std::isinf(temperature) && temperature > 0)) {
        refuse("temperature", temperature, "a finite number (0 is greedy, below 0 samples the untruncated model)");
    }
    if (std::isnan(top_p)) {
        refuse("top_p", top_p, "a number (1 or more switches it off)");
    }
    if (std::isnan(typical_p)) {
        refuse("typical_p", typical_p, "a number (1 or more switches it off)");
    }
    if (std::isnan(min_p) || (std::isinf(min_p) && min_p > 0)) {
        refuse("min_p", min_p, "a finite number (0 or less switches it off)");
    }
    if (!std::isfinite(repeat_penalty) || repeat_penalty <= 0) {
        refuse("repeat_penalty", repeat_penalty, "a finite number above 0 (1 switches it off)");
    }
    if (!std::isfinite(frequency_penalty)) {
        refuse("frequency_penalty", frequency_penalty, "a finite number (0 switches it off)");
    }
    if (!std::isfinite(presence_penalty)) {
        refuse("presence_penalty", presence_penalty, "a finite number (0 switches it off)");
    }
    if (!std::isfinite(top_n_sigma)) {
        refuse("top_n_sigma", top_n_sigma, "a finite number (0 or less switches it off)");
    }
    require_share("xtc_probability", xtc_probability, "from 0 (off) to 1 (always)");
    require_share("xtc_threshold", xtc_threshold, "from 0 to 1 (above 0.5 switches it off)");
    if (!std::isfinite(dynatemp_range)) {
        refuse("dynatemp_range", dynatemp_range, "a finite number (0 or less switches it off)");
    }
    if (!std::isfinite(dynatemp_exponent) || dynatemp_exponent < 0.0F) {
        refuse("dynatemp_exponent", dynatemp_exponent, "a finite number, 0 or more");
    }
    validate_dry(dry);
    for (const auto & [token, bias] : logit_bias) {
        if (token < 0) {
            refuse("a token of logit_bias", token, "a token id of the vocabulary");
        }
        if (std::isnan(bias) || (std::isinf(bias) && bias > 0)) {
            refuse("a value of logit_bias", bias, "a finite number, or -inf to ban the token");
        }
    }
}

}  // namespace specllama
