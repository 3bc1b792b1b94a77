// Drafts with a head that reads only the target's final state.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "drafters/drafter.hpp"
#include "heads/state_head.hpp"

namespace specllama {

// The head that drafts for several texts. Another one may take its place at any time: each generation drafts with the
// head that was there when it began.
class HeadInUse {
public:
    // `head`: null for none yet. `n_embd` and `n_vocab`: the numbers in a state, and the tokens, of all heads.
    HeadInUse(std::size_t n_embd, std::size_t n_vocab, std::shared_ptr<const StateHead> head);

    std::size_t n_embd() const { return n_embd_; }
    std::shared_ptr<const StateHead> head() const;
    // Throws std::invalid_argument for a head of other states or another vocabulary.
    void exchange(std::shared_ptr<const StateHead> head);

private:
    std::size_t n_embd_;
    std::size_t n_vocab_;
    mutable std::mutex mutex_;
    std::shared_ptr<const StateHead> head_;
};

std::shared_ptr<Drafter> make_state_head(std::shared_ptr<const HeadInUse> in_use);

}  // namespace specllama
