// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#pragma once

#include <vector>

#include "../drafter.hpp"
#include "../suffix_index.hpp"

namespace specllama {

class LookupDrafter final : public Drafter {
public:
    // corpus: a text that is looked up besides prompt and output, such as a document that is being edited.
    explicit LookupDrafter(const std::vector<int32_t> & corpus = {});

    std::size_t room(std::size_t) const override { return static_cast<std::size_t>(-1); }
    void begin(const std::vector<int32_t> & history) override;
    std::size_t prefill(const std::vector<int32_t> &) override { return 0; }
    // A function of corpus and history alone, so that each q has one token (design section 8).
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> & history) override;
    void rewind(std::size_t count) override { index_.truncate(start_ + count); }
    double decode_seconds() const override { return 0.0; }
    std::size_t num_decoded() const override { return 0; }

private:
    SuffixIndex index_;  // corpus, a separator, a prefix of history
    std::size_t start_;  // of history
};

}  // namespace specllama
