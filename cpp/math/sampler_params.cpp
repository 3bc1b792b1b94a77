// Checks sampling parameters, and refuses every value that would put a NaN into the distribution.
#include "math/sampler_params.hpp"

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <type_traits>

namespace specllama {

namespace {

// The checks of values, which the tables in sampler_params.hpp name.
bool any_number(double value) { return !std::isnan(value); }
// +inf is refused: it leads to inf - inf, and would make all kept tokens equally likely. -inf only means "below 0".
bool below_infinity(double value) { return value < std::numeric_limits<double>::infinity(); }
bool finite(double value) { return std::isfinite(value); }
bool above_0(double value) { return std::isfinite(value) && value > 0.0; }
bool at_least_0(double value) { return std::isfinite(value) && value >= 0.0; }
bool at_least_1(double value) { return std::isfinite(value) && value >= 1.0; }
bool at_least_minus_1(double value) { return std::isfinite(value) && value >= -1.0; }
bool share(double value) { return value >= 0.0 && value <= 1.0; }

[[noreturn]] void refuse(const char * name, double value, const char * allowed) {
    std::ostringstream message;
    message << name << "=" << value << " is not a usable value: it must be " << allowed;
    throw std::invalid_argument(message.str());
}

}  // namespace

void SamplerParams::validate() const {
#define SPECLLAMA_CHECK(type, name, initial, usable, allowed, ...) \
    if (!usable(name)) {                                           \
        refuse(#name, name, allowed);                              \
    }
    SPECLLAMA_SAMPLERS(SPECLLAMA_CHECK)
#undef SPECLLAMA_CHECK
    for (const auto & [token, bias] : logit_bias) {
        if (token < 0) {
            refuse("a token of logit_bias", token, "a token id of the vocabulary");
        }
        if (!below_infinity(bias)) {
            refuse("a value of logit_bias", bias, "a finite number, or -inf to ban the token");
        }
    }
}

std::vector<SamplerAbout> server_samplers() {
#define SPECLLAMA_LINE(type, name, initial, usable, allowed, summary, switches, option) \
    SamplerAbout{#name, std::is_same_v<type, int>, initial, switches, option, summary},
    return {SPECLLAMA_SERVER_SAMPLERS(SPECLLAMA_LINE)};
#undef SPECLLAMA_LINE
}

}  // namespace specllama
