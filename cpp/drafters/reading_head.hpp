// The base of heads that read the target's hidden states into a memory of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "drafters/drafter.hpp"
#include "drafters/kept_states.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

// The memory holds entries made from the target's states. There are no states for tokens that the target's memory held
// before the generation, because the target does not decode them again. So the head's text begins after these tokens.
class ReadingHead : public DrawingDrafter {
public:
    void begin(const Task & task) override { decoding_ = &task.decoding; }
    void observe(const DecodedBatch & batch) override;
    void finish(const std::vector<int32_t> & history) override;
    std::size_t state_size() const override { return sequence_->decoder().n_features(); }
    std::vector<Sequence *> sequences() const override { return {sequence_.get()}; }
    std::vector<DrafterMemory> memories(const std::vector<int32_t> & history) const override;
    // The memory then holds the text from its beginning on. The states of the tokens that it lacks must follow.
    void refilled(const std::vector<int32_t> & history) override;

    std::size_t missing() const override { return text_.size() - std::min(text_.size(), num_held()); }
    std::size_t n_batch() const override { return sequence_->decoder().n_batch(); }
    std::size_t catch_up() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return sequence_->decode_seconds(); }
    std::size_t num_decoded() const override { return sequence_->num_decoded(); }

protected:
    // window: the most tokens of the text that the memory holds; 0: `most`. behind: each entry is made from a state and
    // the token that comes this many positions after the state's own token.
    ReadingHead(Source source, std::shared_ptr<Sequence> sequence, std::size_t window, std::size_t most,
                std::size_t behind);

    // Puts the next `count` tokens of the text into the memory, and draws nothing.
    virtual void read(std::size_t count) = 0;
    // How many tokens of the memory, from the first on, were read with the target's states.
    virtual std::size_t num_true() const { return num_held(); }
    // All tokens of the memory were.
    virtual void all_are_true() {}

    Sequence & sequence() const { return *sequence_; }
    std::size_t size() const { return size_; }  // of the whole text
    // The text that the memory is to hold.
    const std::vector<int32_t> & text() const { return text_; }
    std::size_t num_held() const { return sequence_->tokens().size(); }
    // The target's states for text()[place] and later tokens.
    const float * states_at(std::size_t place) const { return kept_.at(begin_ + place); }
    // For how many tokens of the text, from the first on, the target's states are known.
    std::size_t num_ready() const { return kept_.end() - std::min(kept_.end(), begin_); }
    // Whether the target's state of the text's last token but one is known. A round's first draft is drawn from this
    // state.
    bool is_ready() const { return kept_.end() + 1 >= size_ && !text_.empty(); }
    // Returns the seconds that the decode took.
    double decode(const Sequence::Addition & addition);
    // Reports what a decode of `count` tokens costs.
    void report(std::size_t count, double seconds) const;

private:
    void take_text(const std::vector<int32_t> & history);

    std::shared_ptr<Sequence> sequence_;
    KeptStates kept_;
    std::size_t window_;
    std::size_t behind_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t begin_ = 0;      // the position of the memory's first state
    std::vector<int32_t> text_;  // the tokens from begin_ + behind_ on
    std::size_t size_ = 0;
};

}  // namespace specllama
