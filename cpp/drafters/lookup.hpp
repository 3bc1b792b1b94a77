// Drafts what followed when the end of the text occurred before (prompt lookup; Saxena 2023). Costs no decode.
#pragma once

#include <vector>

#include "../acceptance_rates.hpp"
#include "../decoder.hpp"
#include "../suffix_index.hpp"

namespace specllama {

class Lookup {
public:
    // What followed an earlier occurrence: a function of corpus, history and drafted tokens alone.
    struct Found {
        std::vector<int32_t> tokens;
        std::vector<Expectation> expectations;
    };

    // corpus: a text that is looked up besides prompt and output, such as a document that is being edited.
    explicit Lookup(const std::vector<int32_t> & corpus = {});

    // A new text: what it shares with the last one is kept.
    void begin(const std::vector<int32_t> & history);
    // The history has grown: what was pushed behind it is forgotten.
    void commit(const std::vector<int32_t> & history);
    // All but the first `count` tokens of history are no longer part of it.
    void rewind(std::size_t count);

    // At most `most` tokens of the target's that may follow history and what was pushed behind it.
    Found look_up(std::size_t most, const Decoder & target) const;
    // Puts a drafted token behind the history, until the next commit().
    void push(int32_t token) { index_.append(token); }

private:
    SuffixIndex index_;      // corpus, a separator, a prefix of history, tokens pushed
    std::size_t start_;      // of history
    std::size_t known_ = 0;  // tokens of history that are in the index
};

}  // namespace specllama
