// The target's side of a round.
#include "loop/target.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace specllama {

// A recurrent memory goes back to a copy, and the tokens after the copy are decoded again. The next batch carries up to
// this many of them, which costs less than a decode of their own.
std::size_t Target::most_carried() const { return std::min<std::size_t>(8, decoder().n_batch() / 2); }

void Target::carry(std::size_t count, bool of_prompt) {
    num_carried_ = count;
    leaves_prompt_ = of_prompt;
}

std::size_t Target::room() const { return decoder().n_batch() - 1 - std::min(num_carried_, most_carried()); }

std::size_t Target::begin(const std::vector<int32_t> & history, SamplerChain chain, bool keeps_states) {
    chain_.emplace(std::move(chain));
    keeps_states_ = keeps_states;
    num_rows_ = 0;
    carry(0);
    return sequence_->keep_common(history);
}

std::optional<std::size_t> Target::prefill(const std::vector<int32_t> & history, bool leaves_end) {
    if (leaves_prompt_ && !leaves_end) {
        carry(0);
    }
    sequence_->keep_common(history);  // the memory may hold more than the history after a rewind, or with snapshots
    const std::size_t left = tokens_to_prefill(*sequence_, history);
    if (left <= num_carried_) {
        return std::nullopt;
    }
    // A recurrent memory is copied before it holds `pending`, because the same prompt may come again. A window that
    // moves on is copied at marks. In a shared decoder, parts of a prompt and rounds are scheduled differently. So in
    // both the prompt's end cannot wait.
    const bool can_wait = !decoder().is_recurrent() && !decoder().is_shared() && !sequence_->next_mark(history);
    if (leaves_end && can_wait && left < decoding_.chunk(decoder())) {
        carry(left, true);
        return std::nullopt;
    }
    const PromptPart done = prefill_chunk(decoding_, *sequence_, history, keeps_states_);
    copy_states(0, done.count, decoder().gives_of_wanted() ? done.count : 0);
    if (done.left == 0) {
        sequence_->save_mark(history);
        sequence_->save_prompt();
    }
    return done.count;
}

void Target::settle(const std::vector<int32_t> & history) {
    sequence_->keep_common(history);
    while (tokens_to_prefill(*sequence_, history) > num_carried_) {
        prefill_chunk(decoding_, *sequence_, history);
    }
}

// No branch row may lie after the last position of the context.
std::size_t Target::room_for_branches(const std::vector<int32_t> & history, std::size_t num_drafted) const {
    const std::size_t used = history.size() + num_drafted;
    const std::size_t of_context = decoder().n_ctx() - std::min(decoder().n_ctx(), used);
    return carries() || decoder().is_shared() ? 0 : std::min(of_context, decoder().n_batch() - 1 - num_drafted);
}

double Target::decode(const std::vector<int32_t> & history, const std::vector<int32_t> & draft,
                      const std::vector<BranchRow> & branch_rows, bool copies) {
    const double before = sequence_->decode_seconds();
    if (tokens_to_prefill(*sequence_, history) > num_carried_) {  // a recurrent memory could not be restored
        settle(history);
    }
    if (num_carried_ > (draft.empty() ? decoder().n_batch() - 1 : most_carried())) {
        while (prefill_chunk(decoding_, *sequence_, history).left > 0) {
        }
    }
    num_held_ = sequence_->tokens().size();
    tokens_.assign(history.begin() + static_cast<std::ptrdiff_t>(num_held_), history.end());
    first_row_ = tokens_.size() - 1;
    tokens_.insert(tokens_.end(), draft.begin(), draft.end());
    if (draft.size() > decoder().num_snapshots()) {
        sequence_->save(1);
    }
    Sequence::Addition batch{{tokens_.data(), tokens_.size(), first_row_}, sequence_.get()};
    batch.keeps_states = keeps_states_;
    batch.branch_rows = &branch_rows;
    decoding_.decode(batch);
    const std::size_t first_new = leaves_prompt_ ? 0 : first_row_;
    copy_states(first_new, tokens_.size() - first_new, decoder().gives_of_wanted() ? first_row_ - first_new : 0);
    num_rows_ = draft.size() + 1;
    num_known_ = 0;
    p_.resize(std::max(p_.size(), num_rows_));
    rows_.clear();
    if (copies && decoder().is_shared()) {
        copy_rows();
    }
    return sequence_->decode_seconds() - before;
}

void Target::copy_rows() {
    rows_.reserve(num_rows_ * decoder().n_vocab());
    for (std::size_t i = 0; i < num_rows_; ++i) {
        const float * row = sequence_->logits(first_row_ + i);
        rows_.insert(rows_.end(), row, row + decoder().n_vocab());
    }
}

// Copies the hidden states at once: the next decode, of another text perhaps, overwrites them.
void Target::copy_states(std::size_t first, std::size_t count, std::size_t without) {
    states_.clear();
    num_without_states_ = 0;
    if (keeps_states_ && count > without) {
        num_without_states_ = without;
        sequence_->copy_states(first + without, count - without, states_);
    }
}

float * Target::row(std::size_t i) {
    return rows_.empty() ? sequence_->logits(first_row_ + i) : rows_.data() + i * decoder().n_vocab();
}

const Distribution & Target::p_at(std::size_t i, const std::vector<int32_t> & sequence, std::size_t prompt_size,
                                  std::size_t before) {
    for (; num_known_ <= i; ++num_known_) {
        chain_->apply(row(num_known_), decoder().n_vocab(), sequence.data() + prompt_size,
                      before - prompt_size + num_known_, p_[num_known_]);
    }
    return p_[i];
}

bool Target::roll_back(const std::vector<int32_t> & history) {
    // Snapshots allow only one rollback. So a memory with snapshots is rolled back in the next round, or by finish(),
    // which may go back further. In a shared decoder, the next batch may be one of other texts, after which there are
    // no snapshots.
    if (decoder().is_shared() || sequence_->tokens().size() + 1 > history.size() + sequence_->num_forgettable()) {
        sequence_->keep_common(history);
    }
    const bool rolled_back = sequence_->tokens().size() >= num_held_;
    carry(rolled_back ? tokens_to_prefill(*sequence_, history) : 0);
    assert(sequence_->tokens().size() < history.size() + sequence_->num_forgettable());
    return rolled_back;
}

void Target::finish(const std::vector<int32_t> & history) {
    num_rows_ = 0;
    sequence_->keep(num_common(history, sequence_->tokens()));  // the memory may hold rejected tokens
}

}  // namespace specllama
