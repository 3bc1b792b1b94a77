// The parameters of the sampler chain, in two tables. Fields, defaults, checks, bindings and Python's options are made
// of these tables. A new parameter needs a line here, and the code that applies it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "math/sequence_breakers.hpp"

// Names, defaults and meanings are those of llama_cpp.Llama._init_sampler.
// X(type, name, default, the check of a value, the allowed values in words)
#define SPECLLAMA_BASE_SAMPLERS(X)                                                                                     \
    X(float, temperature, 0.8, below_infinity, "a finite number (0 is greedy, below 0 samples the untruncated model)") \
    X(int, top_k, 40, any_number, "a whole number (0 or less switches it off)")                                        \
    X(float, top_p, 0.95, any_number, "a number (1 or more switches it off)")                                          \
    X(float, min_p, 0.05, below_infinity, "a finite number (0 or less switches it off)")                               \
    X(float, typical_p, 1.0, any_number, "a number (1 or more switches it off)")                                       \
    X(float, repeat_penalty, 1.0, above_0, "a finite number above 0 (1 switches it off)")                              \
    X(float, frequency_penalty, 0.0, finite, "a finite number (0 switches it off)")                                    \
    X(float, presence_penalty, 0.0, finite, "a finite number (0 switches it off)")                                     \
    X(int, penalty_last_n, 64, any_number, "how many generated tokens the penalties see (0 or less: none)")

// Names, defaults and meanings are those of llama-server. There are three more columns: what the parameter does,
// whether a value above 0 switches its sampler on, and its name on llama.cpp's command line.
#define SPECLLAMA_SERVER_SAMPLERS(X)                                                                                 \
    X(float, dry_multiplier, 0.0, at_least_0, "a finite number, 0 (off) or more",                                    \
      "DRY, against repetitions: from the logit of a token that would continue a repetition of n tokens, "           \
      "dry_multiplier * dry_base ** (n - dry_allowed_length) is subtracted. 0: off.",                                \
      true, "--dry-multiplier")                                                                                      \
    X(float, dry_base, 1.75, at_least_1, "a finite number of at least 1", "The base of DRY's penalty.", false,       \
      "--dry-base")                                                                                                  \
    X(int, dry_allowed_length, 2, at_least_0, "a number of tokens, 0 or more",                                       \
      "The longest repetition that DRY does not penalise, in tokens.", false, "--dry-allowed-length")                \
    X(int, dry_penalty_last_n, -1, at_least_minus_1,                                                                 \
      "a number of tokens, 0 (off), or -1 (prompt and text as a whole)",                                             \
      "The number of last tokens of prompt and text that DRY sees. -1: all.", false, "--dry-penalty-last-n")         \
    X(float, xtc_probability, 0.0, share, "from 0 (off) to 1 (always)",                                              \
      "XTC, exclude top choices: the probability that all tokens from xtc_threshold on are removed, except for the " \
      "least likely one of them. 0: off.",                                                                           \
      true, "--xtc-probability")                                                                                     \
    X(float, xtc_threshold, 0.1, share, "from 0 to 1 (above 0.5 switches it off)",                                   \
      "The probability from which on a token is one of XTC's top choices.", false, "--xtc-threshold")                \
    X(float, top_n_sigma, -1.0, finite, "a finite number (0 or less switches it off)",                               \
      "Tokens are kept whose logit is at most so many standard deviations below the largest. 0 or less: all.", true, \
      "--top-nsigma")                                                                                                \
    X(float, dynatemp_range, 0.0, finite, "a finite number (0 or less switches it off)",                             \
      "Dynamic temperature: the entropy of the next token chooses a temperature at most this far from the given "    \
      "one. 0: off.",                                                                                                \
      true, "--dynatemp-range")                                                                                      \
    X(float, dynatemp_exponent, 1.0, at_least_0, "a finite number, 0 or more",                                       \
      "The exponent of the entropy under dynamic temperature.", false, "--dynatemp-exp")

#define SPECLLAMA_SAMPLERS(X)  \
    SPECLLAMA_BASE_SAMPLERS(X) \
    SPECLLAMA_SERVER_SAMPLERS(X)

namespace specllama {

struct SamplerParams {
#define SPECLLAMA_FIELD(type, name, initial, ...) type name = static_cast<type>(initial);
    SPECLLAMA_SAMPLERS(SPECLLAMA_FIELD)
#undef SPECLLAMA_FIELD
    std::vector<std::pair<int32_t, float>> logit_bias;     // added to the logit; -inf bans the token
    std::shared_ptr<const SequenceBreakers> dry_breakers;  // null: none
    std::vector<int32_t> dry_prompt;                       // the prompt, which DRY sees before the generated tokens

    // Throws std::invalid_argument, which names the parameter, its value and what is allowed.
    void validate() const;

    bool has_sigma() const { return top_n_sigma > 0.0F; }
    bool truncates() const { return has_sigma() || top_k > 0 || looks_at_probabilities(); }
    bool looks_at_probabilities() const { return typical_p < 1.0F || top_p < 1.0F || min_p > 0.0F; }
    bool has_xtc() const { return xtc_probability > 0.0F && xtc_threshold <= 0.5F; }
    bool has_dry() const { return dry_multiplier != 0.0F && dry_penalty_last_n != 0; }

    bool has_penalties() const {
        return penalty_last_n > 0 && (repeat_penalty != 1.0F || frequency_penalty != 0.0F || presence_penalty != 0.0F);
    }
};

// What Python sees of llama-server's parameters.
struct SamplerAbout {
    const char * name;
    bool is_whole;   // a whole number
    double initial;  // its default
    bool switches;   // a value above 0 switches its sampler on
    const char * option;
    const char * summary;
};

std::vector<SamplerAbout> server_samplers();

}  // namespace specllama
