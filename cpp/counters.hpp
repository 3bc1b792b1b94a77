// What is counted during one generation. specllama.Stats is made of it.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "drafter_table.hpp"

namespace specllama {

// One way of drafting: a model, lookup, ...
struct SourceCounters {
    std::size_t num_drafts = 0;  // rounds to which it contributed
    std::size_t num_draft_tokens = 0;
    std::size_t num_accepted_tokens = 0;
};

// Why a round drafted nothing.
enum class Idle { measuring, no_match, not_worth_it };
constexpr std::size_t num_idle = 3;
constexpr std::array<const char *, num_idle> idle_names{"measuring", "no_match", "not_worth_it"};

// What the pace expected, and what it cost to find out.
struct PaceCounters {
    double plain_seconds = 0.0;      // of decoding one token plainly, as measured last
    double exploring_seconds = 0.0;  // lost in rounds that drafted although it might not pay
    double predicted_tokens = 0.0;   // of all rounds, when they were verified
    double predicted_seconds = 0.0;
    std::array<std::size_t, num_idle> idle_rounds{};  // by Idle
    std::size_t num_dropped = 0;                      // drafted, but not worth verifying
    bool prompt_skipped = false;                      // the draft model left the prompt undecoded
};

struct Proposal;
struct Distribution;

struct Counters {
    // One round. Of p, the target's distributions, as many are there as tokens were emitted.
    void add(const Proposal & proposal, const std::vector<Distribution> & p, std::size_t num_emitted,
             std::size_t num_accepted);

    std::size_t num_prompt_tokens = 0;
    std::size_t num_prompt_tokens_reused = 0;  // found in the target's KV cache
    std::size_t num_drafts = 0;                // rounds that drafted
    std::size_t num_draft_tokens = 0;
    std::size_t num_accepted_tokens = 0;
    std::size_t num_emitted_tokens = 0;  // of all rounds
    // By position in the draft. How many rounds drafted that far, and in how many of them it was accepted.
    std::vector<std::size_t> num_draft_tokens_per_pos;
    std::vector<std::size_t> num_accepted_tokens_per_pos;

    std::array<SourceCounters, num_sources> per_source;  // by Source
    std::vector<std::size_t> num_rounds_per_gamma;       // rounds that drafted 0, 1, 2, ... tokens

    PaceCounters pace;

    // Drafted positions that were reached: every draft before them in the round had been accepted.
    std::size_t num_reached_tokens = 0;
    double sum_overlap = 0.0;       // of sum_x min(p(x), q(x)) over those positions
    double sum_argmax_match = 0.0;  // of p(argmax q) over those positions

    // Tokens that went through llama_decode, prompt included.
    std::size_t num_target_tokens_decoded = 0;
    std::size_t num_draft_tokens_decoded = 0;

    double prompt_seconds = 0.0;    // llama_decode of the prompt, both models
    double draft_seconds = 0.0;     // llama_decode of the draft
    double verify_seconds = 0.0;    // llama_decode of the target
    double sample_seconds = 0.0;    // sampler chains, drawing, acceptance rules
    double rollback_seconds = 0.0;  // both caches
};

}  // namespace specllama
