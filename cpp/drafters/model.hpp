// A draft model: a second, smaller model with a decoder of its own.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/draft_tokens.hpp"
#include "drafters/drafter.hpp"
#include "pacing/acceptance_rates.hpp"
#include "pacing/cost_model.hpp"
#include "translation/token_map.hpp"

namespace specllama {

struct ModelParts {
    std::shared_ptr<Sequence> sequence;
    std::size_t window = 0;                         // the most tokens of the text in the memory; 0: no limit
    std::shared_ptr<DraftTokens> tokens = nullptr;  // the tokens that the draft chooses among; null: all
    // For a model that was trained to draft several tokens in one decode (PARD): the decode reads this token in place
    // of each drafted token that is not known yet.
    std::optional<int32_t> mask = std::nullopt;
    std::shared_ptr<const TokenMap> map = nullptr;  // null: the draft has the target's vocabulary
    // A drafter that guesses what this model will draw (Spector and Re 2023, arXiv 2308.04623). The guesses are decoded
    // together with the token before them. The row of logits of a guess is used if all tokens drawn so far equal their
    // guesses. So tokens and q are the same as without guesses.
    std::shared_ptr<Drafter> inner = nullptr;
};

// The memory, the list of tokens, the masks and text_ are in the draft's vocabulary. All arguments and results are in
// the target's.
//
// The memory holds a prefix of the text, or of the text's last part if the text is longer than the window. Accepted
// tokens are not decoded again until the window moves.
class ModelDrafter : public DrawingDrafter {
public:
    ModelDrafter(Source source, ModelParts parts);

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    void finish(const std::vector<int32_t> & history) override;
    std::vector<Sequence *> sequences() const override;
    std::vector<DrafterMemory> memories(const std::vector<int32_t> & history) const override;
    void refilled(const std::vector<int32_t> & history) override;

    // Draws nothing if no token of the list is allowed; the next draw chooses among all tokens.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    std::size_t room() const override;
    std::size_t missing() const override { return text_.size() - sequence_->tokens().size(); }
    std::size_t n_batch() const override { return sequence_->decoder().n_batch(); }
    std::size_t block() const override;
    std::size_t catch_up() override;
    // Decodes two tokens, because the first decode of a process is slow.
    void probe() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override;
    std::size_t num_decoded() const override;

protected:
    // A text in the draft's tokens: their number, and the length of the prefix that has not changed.
    struct Reading {
        std::size_t size;
        std::size_t unchanged;
    };
    virtual Reading observed(const std::vector<int32_t> & text, std::size_t unchanged) {
        return {text.size(), unchanged};
    }
    // Appends to `out` the draft's tokens of the last observed text, from number `first` on.
    virtual void read_text(const std::vector<int32_t> & text, std::size_t first, std::vector<int32_t> & out) const;
    // Appends to `out` the draft's tokens of tokens drafted after the text.
    virtual void read_drafted(const std::vector<int32_t> & tokens, std::vector<int32_t> & out) const {
        read_text(tokens, 0, out);
    }
    // Whether all tokens that can be drafted have equal ids in both vocabularies, so that logits need no mapping.
    virtual bool keeps_ids() const { return !map_ || map_->keeps_ids(); }
    // Maps logits to the target's tokens: see token_map.hpp.
    virtual std::size_t spread_logits(const float * logits, const TokenList * listed, std::vector<float> & out) const {
        return map_->spread(logits, listed, out);
    }

private:
    const TokenList * listed() const;
    std::size_t window_begin(std::size_t size) const;
    std::size_t num_masks(const DraftRequest & request, std::size_t drafted) const;
    void decode_block(const DraftRequest & request, const Proposal & proposal);
    std::optional<DraftToken> draw_mapped(const DraftRequest & request, std::size_t before, const Proposal & proposal,
                                          const float * logits);
    std::optional<DraftToken> draw_gathered(const DraftRequest & request, std::size_t before, const Proposal & proposal,
                                            const TokenList * list);
    int32_t draft_id(int32_t token) const { return map_ ? map_->read(token) : token; }
    bool has_row(const Proposal & proposal) const;
    DrawingDrafter * drawing_inner() const { return inner_ ? inner_->drawing() : nullptr; }
    std::size_t catch_up_self();
    std::vector<DraftToken> drawn_guesses(const DraftRequest & request, const Proposal & proposal, std::size_t count,
                                          std::size_t most);
    std::vector<int32_t> guesses(const DraftRequest & request, const Proposal & proposal, std::size_t count);
    void judge_guess(std::size_t place, int32_t token);
    std::optional<DraftToken> draw_from(float * logits, const DraftRequest & request, std::size_t before,
                                        const Proposal & proposal);
    void save();
    void decode(const std::vector<int32_t> & text, std::size_t count, std::size_t first_output);

    std::shared_ptr<Sequence> sequence_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t window_ = 0;
    std::size_t begin_ = 0;        // length of the text before the window
    std::vector<int32_t> text_;    // the text from begin_ on, in the draft's tokens
    std::size_t prompt_size_ = 0;  // length of the prompt, with the part before the window; 0: no generation
    std::shared_ptr<DraftTokens> tokens_;
    std::optional<TokenList> listed_;  // the usual tokens and those of the text; nothing: no list can be used
    std::size_t num_listed_ = 0;       // how many tokens of the text are on the list
    std::vector<float> gathered_;
    std::optional<int32_t> mask_;
    std::shared_ptr<const TokenMap> map_;
    std::shared_ptr<Drafter> inner_;
    CostModel inner_costs_;            // of the inner drafter's decodes, if there are any
    AcceptanceRates rates_;            // how often the inner drafter's guesses are right
    std::vector<DraftToken> guessed_;  // the guesses of the last decode
    // Whether the memory may hold guesses that were wrong: this drafter has an inner drafter, or is one.
    bool takes_back_;
    // The rows of this round's last decode that tokens can be drawn from.
    std::size_t block_begin_ = 0;        // how many drafted tokens come before the first row
    std::size_t block_size_ = 0;         // number of rows
    std::size_t block_row_ = 0;          // index of the first row
    double saving_seconds_ = 0.0;        // of save() before the next decode; part of that decode's cost
    std::vector<int32_t> drafted_text_;  // text_, the tokens drafted so far, then the guesses
};

}  // namespace specllama
