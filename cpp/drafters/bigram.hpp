// Drafts what has followed the last token most often in this text. The example of docs/a-new-drafter.md.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "drafters/drafter.hpp"

namespace specllama {

class BigramDrafter final : public Drafter {
public:
    // corpus: a text that counts besides prompt and output.
    explicit BigramDrafter(const std::vector<int32_t> & corpus);

    void observe(const DecodedBatch & batch) override;
    std::vector<DraftToken> offer(const DraftRequest & request, const Proposal & proposal, std::size_t most) override;

private:
    void count(int32_t token, int32_t next, int by);

    // How often a token was followed by which, in the corpus and in text_.
    std::unordered_map<int32_t, std::map<int32_t, int>> followers_;
    std::vector<int32_t> text_;  // the history, as far as it is counted
};

}  // namespace specllama
