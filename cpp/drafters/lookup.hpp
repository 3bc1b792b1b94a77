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

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;

private:
    void append(const std::vector<int32_t> & corpus);

    // The corpus of all generations, that of this one, a separator behind each, the history, what has been proposed
    // after it.
    SuffixIndex index_;
    std::size_t common_ = 0;    // tokens of the first of these
    std::vector<int32_t> own_;  // corpus of this generation
    std::size_t start_ = 0;     // of the history
    std::size_t known_ = 0;     // tokens of it
};

// A looked-up token, by how many tokens agree before it, and whether other occurrences went on differently.
Expectation lookup_expectation(std::size_t length, bool disputed);

}  // namespace specllama
