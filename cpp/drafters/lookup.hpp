// Drafts the tokens that followed an earlier occurrence of the text's end (prompt lookup; Saxena 2023). Needs no
// decode.
#pragma once

#include <vector>

#include "drafters/drafter.hpp"
#include "pacing/suffix_index.hpp"

namespace specllama {

class LookupDrafter final : public Drafter {
public:
    // corpus: a text to search besides prompt and output, such as a document that is being edited.
    explicit LookupDrafter(const std::vector<int32_t> & corpus);

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;

private:
    void append(const std::vector<int32_t> & corpus);

    // Holds, in this order: the corpus of all generations, the corpus of this generation (each with a separator after
    // it), the history, and the tokens proposed after it.
    SuffixIndex index_;
    std::size_t common_ = 0;       // length of the first corpus, with its separator
    std::vector<int32_t> corpus_;  // the corpus of this generation
    std::size_t start_ = 0;        // index of the history's first token
    std::size_t known_ = 0;        // length of the history
};

// The Expectation of a looked-up token. length: how many tokens before it match. disputed: whether other occurrences
// continued differently.
Expectation lookup_expectation(std::size_t length, bool disputed);

}  // namespace specllama
