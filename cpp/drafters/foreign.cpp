// A draft model with another tokenizer: it reads the text in its own tokens, and drafts only tokens that both
// vocabularies have.
#include "drafters/foreign.hpp"

#include <utility>
#include <vector>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"

namespace specllama {

namespace {

// q is the draft's distribution restricted to the common tokens, normalised by the sampler chain. It is a distribution
// over the target's tokens, so every rule is exact with it.
class ForeignDrafter final : public ModelDrafter {
public:
    ForeignDrafter(ModelParts parts, std::shared_ptr<const Translation> translation)
        : ModelDrafter(Source::foreign, std::move(parts)),
          translation_(std::move(translation)),
          translated_(*translation_) {}

protected:
    Reading observed(const std::vector<int32_t> & text, std::size_t) override {
        const std::size_t size = translated_.read(text).size();
        return {size, translated_.num_unchanged()};
    }
    void read_text(const std::vector<int32_t> &, std::size_t first, std::vector<int32_t> & out) const override {
        const std::vector<int32_t> & tokens = translated_.draft_tokens();
        out.insert(out.end(), tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end());
    }
    // Translates each drafted token by itself, not together with the text before it: so the draft goes on with the very
    // tokens that it drafted.
    void read_drafted(const std::vector<int32_t> & tokens, std::vector<int32_t> & out) const override {
        for (const int32_t token : tokens) {
            translation_->read_token(token, out);
        }
    }
    bool keeps_ids() const override { return false; }
    std::size_t spread_logits(const float * logits, const TokenList * listed, std::vector<float> & out) const override {
        return spread(translation_->drafted(), translation_->num_target_tokens(), logits, listed, out);
    }

private:
    std::shared_ptr<const Translation> translation_;
    TranslatedText translated_;
};

// The classes of confidence are those of drawn_token.cpp. The rates were measured with SmolLM2-135M for
// Qwen2.5-Coder-1.5B at 512 places of eight kinds of text (greedy). They are lower than for a draft of the same family,
// above all where the draft is sure but the target splits the text into other tokens. Of four tokens a round, a fifth
// to a quarter is accepted, since the first wrong one ends a round.
constexpr ByConfidence confidence_priors{0.12, 0.25, 0.42, 0.53, 0.66, 0.78, 0.8, 0.83, 0.86, 0.88};
constexpr ByNext next_priors{0.5, 0.55, 0.58, 0.6, 0.62, 0.64, 0.66, 0.68, 0.72, 0.77, 0.54};
constexpr double any_prior = 0.54;

}  // namespace

DrafterPriors foreign_priors() { return drawn_priors(confidence_priors, next_priors, any_prior); }

std::shared_ptr<Drafter> make_foreign(ModelParts parts, std::shared_ptr<const Translation> translation) {
    return std::make_shared<ForeignDrafter>(std::move(parts), std::move(translation));
}

}  // namespace specllama
