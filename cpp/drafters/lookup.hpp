// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#pragma once

#include <vector>

#include "../drafter.hpp"
#include "../suffix_index.hpp"

namespace specllama {

class LookupDrafter final : public Drafter {
public:
    // What followed an earlier occurrence: a function of corpus, history and drafted tokens alone.
    struct Found {
        std::vector<int32_t> tokens;
        std::vector<Expectation> expectations;
    };

    // corpus: a text that is looked up besides prompt and output, such as a document that is being edited.
    explicit LookupDrafter(const std::vector<int32_t> & corpus = {});

    std::size_t room(std::size_t) const override { return static_cast<std::size_t>(-1); }
    void begin(const std::vector<int32_t> & history, const Task & task) override;
    std::size_t prefill(const std::vector<int32_t> &) override { return 0; }
    void propose(const DraftRequest & request, Proposal & out) override;
    void commit(const std::vector<int32_t> & history) override;
    void rewind(std::size_t count) override;
    double decode_seconds() const override { return 0.0; }
    std::size_t num_decoded() const override { return 0; }

    // At most `most` tokens of the target's that may follow history and what was pushed behind it.
    Found look_up(std::size_t most, const Context & target) const;
    // Puts a drafted token behind the history, until the next commit().
    void push(int32_t token) { index_.append(token); }

private:
    SuffixIndex index_;      // corpus, a separator, a prefix of history, tokens pushed
    std::size_t start_;      // of history
    std::size_t known_ = 0;  // tokens of history that are in the index
};

}  // namespace specllama
