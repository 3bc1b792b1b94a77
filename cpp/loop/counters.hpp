// What is counted during one generation. specllama.Stats is made of it.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "drafters/source.hpp"
#include "pacing/pace.hpp"

// Each counter stands here once: fields, bindings and what Python adds up are made of these tables. A new one needs a
// line here, the code that counts, and where users are to see it a field of the same name in specllama.Stats. X(type,
// name, what it is)

#define SPECLLAMA_COUNTERS(X)                                                                         \
    X(std::size_t, num_prompt_tokens, "Tokens of the prompt.")                                        \
    X(std::size_t, num_prompt_tokens_reused, "Of these, tokens found in the target's KV cache.")      \
    X(std::size_t, num_drafts, "Rounds that drafted.")                                                \
    X(std::size_t, num_draft_tokens, "Tokens drafted.")                                               \
    X(std::size_t, num_accepted_tokens, "Drafted tokens that the target accepted.")                   \
    X(std::size_t, num_emitted_tokens, "Tokens of all rounds.")                                       \
    X(std::size_t, num_first_tokens, "Tokens that came with the prompt's last batch, before them.")   \
    X(std::size_t, num_reached_tokens,                                                                \
      "Drafted positions that were reached: every draft before them in the round had been accepted.") \
    X(std::size_t, num_drawn_tokens, "Tokens drafted by a draft model.")                              \
    X(std::size_t, sum_draft_vocabulary, "Of the numbers of tokens among which it chose each.")       \
    X(double, sum_overlap, "Of sum_x min(p(x), q(x)) over the positions that were reached.")          \
    X(double, sum_argmax_match, "Of p(argmax q) over the same.")                                      \
    X(std::size_t, num_target_tokens_decoded, "Tokens that the target decoded, prompt included.")     \
    X(std::size_t, num_draft_tokens_decoded, "Tokens that the draft decoded, prompt included.")       \
    X(double, prompt_seconds, "In llama_decode of the prompt, both models.")                          \
    X(double, draft_seconds, "In llama_decode of the draft.")                                         \
    X(double, verify_seconds, "In llama_decode of the target.")                                       \
    X(double, sample_seconds, "In sampler chains, drawing and acceptance rules.")                     \
    X(double, rollback_seconds, "In rolling back both caches.")

// X(name, what it is): lists of numbers.
#define SPECLLAMA_LISTS(X)                                                                             \
    X(num_draft_tokens_per_pos, "How many rounds drafted a token at the first, second, ... position.") \
    X(num_accepted_tokens_per_pos, "In how many of them it was accepted.")                             \
    X(num_rounds_per_gamma, "How many rounds drafted 0, 1, 2, ... tokens.")

namespace specllama {

#define SPECLLAMA_COUNTER(type, name, summary) type name = 0;

// One way of drafting: a model, lookup, ...
struct SourceCounters {
    std::size_t num_drafts = 0;  // rounds to which it contributed
    std::size_t num_draft_tokens = 0;
    std::size_t num_accepted_tokens = 0;
};

struct Proposal;
struct Distribution;

struct Counters {
    // One round. Of p, the target's distributions, as many are there as tokens were emitted.
    void add(const Proposal & proposal, const std::vector<Distribution> & p, std::size_t num_emitted,
             std::size_t num_accepted);

    SPECLLAMA_COUNTERS(SPECLLAMA_COUNTER)
#define SPECLLAMA_LIST(name, summary) std::vector<std::size_t> name;
    SPECLLAMA_LISTS(SPECLLAMA_LIST)
#undef SPECLLAMA_LIST
    std::array<SourceCounters, num_sources> per_source;  // by Source
    PaceCounters pace;
};

#undef SPECLLAMA_COUNTER

}  // namespace specllama
