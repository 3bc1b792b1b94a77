// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#pragma once

#include <vector>

#include "drafters/drafter.hpp"
#include "pacing/suffix_index.hpp"

namespace specllama {

class LookupDrafter final : public Drafter {
public:
    // corpus: a text that is looked up besides prompt and output, such as a document that is being edited.
    explicit LookupDrafter(const std::vector<int32_t> & corpus);

    Offer offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;
    // What it shares with the last text is kept.
    void begin(const std::vector<int32_t> & history, const Task & task) override;
    void commit(const std::vector<int32_t> & history) override;
    void push(int32_t token) override { index_.append(token); }
    void rewind(std::size_t count) override;

private:
    SuffixIndex index_;      // corpus, a separator, a prefix of history, tokens pushed
    std::size_t start_;      // of history
    std::size_t known_ = 0;  // tokens of history that are in the index
};

// A looked-up token, by how many tokens agree before it, and whether other occurrences went on differently.
Expectation lookup_expectation(std::size_t length, bool disputed);

}  // namespace specllama
