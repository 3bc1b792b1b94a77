// The counters of one generation. specllama.Stats is made from these counters.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "drafters/source.hpp"
#include "pacing/pace.hpp"

// Each counter is listed here once. The fields, the bindings and the sums that Python makes are generated from these
// tables. A new counter needs a line here, the code that counts, and, if users are to see it, a field of the same name
// in specllama.Stats. X(type, name, description)

#define SPECLLAMA_COUNTERS(X)                                                                                       \
    X(std::size_t, num_prompt_tokens, "Tokens of the prompt.")                                                      \
    X(std::size_t, num_prompt_tokens_reused, "Prompt tokens that the target did not decode: they were kept.")       \
    X(std::size_t, num_prompt_tokens_from_ram, "Of these, tokens that came from copies in memory.")                 \
    X(std::size_t, num_prompt_tokens_from_disk, "Of these, tokens that came from files.")                           \
    X(std::size_t, num_drafts, "Rounds that drafted.")                                                              \
    X(std::size_t, num_draft_tokens, "Tokens drafted.")                                                             \
    X(std::size_t, num_accepted_tokens, "Drafted tokens that the target accepted.")                                 \
    X(std::size_t, num_emitted_tokens, "Tokens that the rounds emitted.")                                           \
    X(std::size_t, num_first_tokens, "Tokens that came with the prompt's last batch, before the rounds.")           \
    X(std::size_t, num_reached_tokens, "Drafted positions whose earlier drafts in the round were all accepted.")    \
    X(std::size_t, num_drawn_tokens, "Tokens drafted by a draft model.")                                            \
    X(std::size_t, sum_draft_vocabulary, "Sum, over these tokens, of how many tokens the draft model chose among.") \
    X(double, sum_overlap, "Sum of sum_x min(p(x), q(x)) over the reached positions.")                              \
    X(double, sum_argmax_match, "Sum of p(argmax q) over the reached positions.")                                   \
    X(std::size_t, num_target_tokens_decoded, "Tokens that the target decoded, prompt included.")                   \
    X(std::size_t, num_draft_tokens_decoded, "Tokens that the draft decoded, prompt included.")                     \
    X(double, prompt_seconds, "Seconds in llama_decode of the prompt, both models.")                                \
    X(double, draft_seconds, "Seconds in llama_decode of the draft.")                                               \
    X(double, verify_seconds, "Seconds in llama_decode of the target.")                                             \
    X(double, sample_seconds, "Seconds in sampler chains, drawing and acceptance rules.")                           \
    X(double, rollback_seconds, "Seconds of rolling back both caches.")

// Lists of numbers: X(name, description).
#define SPECLLAMA_LISTS(X)                                                                             \
    X(num_draft_tokens_per_pos, "How many rounds drafted a token at the first, second, ... position.") \
    X(num_accepted_tokens_per_pos, "How many rounds accepted the token at each position.")             \
    X(num_rounds_per_gamma, "How many rounds drafted 0, 1, 2, ... tokens.")

namespace specllama {

#define SPECLLAMA_COUNTER(type, name, summary) type name = 0;

// What one kind of drafter (a model, lookup, ...) has contributed.
struct SourceCounters {
    std::size_t num_drafts = 0;  // rounds to which the drafter contributed
    std::size_t num_draft_tokens = 0;
    std::size_t num_accepted_tokens = 0;
};

struct Proposal;
struct Distribution;

struct Counters {
    // Counts one round. `p` holds the target's distributions, one for each emitted token.
    void add(const Proposal & proposal, const std::vector<Distribution> & p, std::size_t num_emitted,
             std::size_t num_accepted);

    SPECLLAMA_COUNTERS(SPECLLAMA_COUNTER)
#define SPECLLAMA_LIST(name, summary) std::vector<std::size_t> name;
    SPECLLAMA_LISTS(SPECLLAMA_LIST)
#undef SPECLLAMA_LIST
    std::array<SourceCounters, num_sources> per_source;  // index: Source
    PaceCounters pace;
};

#undef SPECLLAMA_COUNTER

}  // namespace specllama
