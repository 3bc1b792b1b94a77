// The counters of one generation.
#include "loop/counters.hpp"

#include <algorithm>

#include "drafters/proposal.hpp"

namespace specllama {

namespace {

void count_sources(const std::vector<Expectation> & expected, std::size_t num_accepted,
                   std::array<SourceCounters, num_sources> & per_source) {
    std::array<bool, num_sources> seen{};
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto source = static_cast<std::size_t>(expected[i].source);
        per_source[source].num_drafts += seen[source] ? 0 : 1;
        per_source[source].num_draft_tokens += 1;
        per_source[source].num_accepted_tokens += i < num_accepted ? 1 : 0;
        seen[source] = true;
    }
}

void count_per_position(std::vector<std::size_t> & per_position, std::size_t count, std::size_t num_drafted) {
    per_position.resize(std::max(per_position.size(), num_drafted), 0);
    for (std::size_t i = 0; i < count; ++i) {
        per_position[i] += 1;
    }
}

}  // namespace

void Counters::add(const Proposal & proposal, const std::vector<Distribution> & p, std::size_t num_emitted,
                   std::size_t num_accepted) {
    const std::size_t drafted = proposal.tokens.size();
    num_emitted_tokens += num_emitted;
    num_rounds_per_gamma.resize(std::max(num_rounds_per_gamma.size(), drafted + 1), 0);
    num_rounds_per_gamma[drafted] += 1;
    if (drafted == 0) {
        return;
    }
    count_sources(proposal.expected, num_accepted, per_source);
    num_drafts += 1;
    num_draft_tokens += drafted;
    num_accepted_tokens += num_accepted;
    for (const std::size_t choices : proposal.choices) {
        num_drawn_tokens += choices > 0 ? 1 : 0;
        sum_draft_vocabulary += choices;
    }
    count_per_position(num_draft_tokens_per_pos, drafted, drafted);
    count_per_position(num_accepted_tokens_per_pos, num_accepted, drafted);
    const std::size_t reached = std::min(num_emitted, drafted);
    num_reached_tokens += reached;
    for (std::size_t i = 0; i < reached; ++i) {
        sum_overlap += overlap(p[i], proposal.q[i]);
        sum_argmax_match += p[i].of(proposal.q[i].argmax());
    }
}

}  // namespace specllama
