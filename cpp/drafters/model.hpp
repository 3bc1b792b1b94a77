// The papers' draft: a second, smaller model with a decoder of its own.
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

// Its memory, its list of tokens and its masks are in its own vocabulary, and so is text_. All that goes in or out is
// in the target's.
//
// Its memory holds a prefix of the text, or of its end where the text is longer than the window: a drafted token that
// was accepted is not decoded again before the window moves on.
class ModelDrafter : public DrawingDrafter {
public:
    // tokens: of its vocabulary, that it chooses among where this saves the others' logits; null: all.
    // window: of the text it holds at most so many tokens; 0: as many as its context has room for.
    // mask: it was trained (PARD) to say several tokens in one decode, of which all but the first see masks in place of
    // those before them.
    // map: between its tokens and the target's; null: they are the same.
    // inner: drafts for the draft (Spector and Re 2023, arXiv 2308.04623). What it offers is decoded together with the
    // token before it, and its rows are drawn from as long as the draws are what was offered. So tokens and q are those
    // that there would be without. Null: there is none.
    ModelDrafter(std::shared_ptr<Sequence> sequence, std::shared_ptr<DraftTokens> tokens, std::size_t window,
                 std::optional<int32_t> mask, std::shared_ptr<const TokenMap> map, std::unique_ptr<Drafter> inner);

    void begin(const Task & task) override;
    void observe(const DecodedBatch & batch) override;
    void finish(const std::vector<int32_t> & history) override;
    std::vector<Sequence *> sequences() const override { return {own_.get()}; }

    // Nothing where no token of the list is allowed: from there on it chooses among all.
    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    std::size_t room() const override;
    std::size_t missing() const override { return text_.size() - own_->tokens().size(); }
    std::size_t n_batch() const override { return own_->decoder().n_batch(); }
    std::size_t block() const override;
    std::size_t catch_up() override;
    // Two tokens: the first decode of a process is a slow one.
    void probe() override;
    void report_to(CostModel * costs) override { costs_ = costs; }
    double decode_seconds() const override { return own_->decode_seconds(); }
    std::size_t num_decoded() const override { return own_->num_decoded(); }

protected:
    ModelDrafter(Source source, std::shared_ptr<Sequence> sequence, std::shared_ptr<DraftTokens> tokens,
                 std::size_t window, std::optional<int32_t> mask, std::shared_ptr<const TokenMap> map,
                 std::unique_ptr<Drafter> inner);

    // What it makes of a text of the target's: `size` tokens of its own, of which so many are as they were.
    struct Reading {
        std::size_t size;
        std::size_t unchanged;
    };
    virtual Reading observed(const std::vector<int32_t> & text, std::size_t unchanged) {
        return {text.size(), unchanged};
    }
    // Its own tokens from number `first` on of the text that was observed last, behind what `out` has.
    virtual void read_text(const std::vector<int32_t> & text, std::size_t first, std::vector<int32_t> & out) const;
    // The same of tokens that were drafted behind it.
    virtual void read_drafted(const std::vector<int32_t> & tokens, std::vector<int32_t> & out) const {
        read_text(tokens, 0, out);
    }
    // Whether all that can be drafted has one id in both, so that logits can be taken as they are.
    virtual bool keeps_ids() const { return !map_ || map_->keeps_ids(); }
    // See token_map.hpp.
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
    int32_t own_token(int32_t token) const { return map_ ? map_->read(token) : token; }
    bool has_row(const Proposal & proposal) const;
    std::vector<int32_t> guesses(const DraftRequest & request, const Proposal & proposal, std::size_t count);
    void judge_guess(std::size_t place, int32_t token);
    std::optional<DraftToken> draw_next(const DraftRequest & request, std::size_t before, const Proposal & proposal);
    void save();
    void decode(const std::vector<int32_t> & text, std::size_t count, std::size_t first_output);

    std::shared_ptr<Sequence> own_;
    Decoding * decoding_ = nullptr;  // of this generation
    CostModel * costs_ = nullptr;
    std::size_t window_ = 0;
    std::size_t begin_ = 0;        // tokens of the text that are before the window
    std::vector<int32_t> text_;    // behind them, as it reads them
    std::size_t prompt_size_ = 0;  // of the whole text; 0: no generation
    std::shared_ptr<DraftTokens> tokens_;
    std::optional<TokenList> listed_;  // the usual ones, and all of the text; nothing: no list is of use
    std::size_t num_listed_ = 0;       // tokens of the text that are on it
    std::vector<float> gathered_;
    std::optional<int32_t> mask_;
    std::shared_ptr<const TokenMap> map_;
    std::unique_ptr<Drafter> inner_;
    AcceptanceRates rates_;            // of what it offers
    std::vector<DraftToken> guessed_;  // in the last decode
    // What can be drawn of the last decode of this round.
    std::size_t block_begin_ = 0;    // drafted tokens before the first
    std::size_t block_size_ = 0;     // tokens
    std::size_t block_row_ = 0;      // logits of the first
    double saving_seconds_ = 0.0;    // for the next decode, and part of what it costs
    std::vector<int32_t> sequence_;  // text_ and the tokens drafted so far, and what the inner drafter offered then
};

}  // namespace specllama
