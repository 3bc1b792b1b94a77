// A draft model: a second, smaller model with a decoder of its own.
#include "drafters/model.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "drafters/drawn_token.hpp"
#include "drafters/table.hpp"
#include "llama/errors.hpp"
#include "math/tempering.hpp"

namespace specllama {

namespace {

constexpr std::size_t paced_block = 8;   // tokens of one decode of a PARD draft, if there is a pace
constexpr std::size_t most_behind = 2;   // tokens after the prompt: so few are decoded by the first draw
constexpr std::size_t most_saved = 8;    // copies of a recurrent draft's state in one round
constexpr std::size_t most_guessed = 8;  // guesses of an inner drafter in one decode

}  // namespace

ModelDrafter::ModelDrafter(Source source, ModelParts parts)
    : DrawingDrafter(source),
      sequence_(std::move(parts.sequence)),
      tokens_(std::move(parts.tokens)),
      mask_(parts.mask),
      map_(std::move(parts.map)),
      inner_(std::move(parts.inner)),
      rates_(all_priors()),
      takes_back_(inner_ != nullptr) {
    const std::size_t n_ctx = sequence_->decoder().n_ctx();
    window_ = parts.window > 0 ? std::min(parts.window, n_ctx) : n_ctx;
    if (DrawingDrafter * drawing = drawing_inner()) {
        drawing->report_to(&inner_costs_);
    }
    if (auto * guessing = dynamic_cast<ModelDrafter *>(inner_.get())) {
        guessing->takes_back_ = true;
    }
}

std::vector<Sequence *> ModelDrafter::sequences() const {
    std::vector<Sequence *> all = inner_ ? inner_->sequences() : std::vector<Sequence *>();
    all.push_back(sequence_.get());
    return all;
}

std::vector<DrafterMemory> ModelDrafter::memories(const std::vector<int32_t> & history) const {
    std::vector<DrafterMemory> all = inner_ ? inner_->memories(history) : std::vector<DrafterMemory>();
    if (!text_.empty()) {
        all.push_back({sequence_, {text_.begin(), text_.end() - 1}});
    }
    return all;
}

void ModelDrafter::refilled(const std::vector<int32_t> & history) {
    if (inner_) {
        inner_->refilled(history);
    }
}

double ModelDrafter::decode_seconds() const {
    const DrawingDrafter * drawing = drawing_inner();
    return sequence_->decode_seconds() + (drawing != nullptr ? drawing->decode_seconds() : 0.0);
}

std::size_t ModelDrafter::num_decoded() const {
    const DrawingDrafter * drawing = drawing_inner();
    return sequence_->num_decoded() + (drawing != nullptr ? drawing->num_decoded() : 0);
}

// The list begins anew with each generation: then drafts depend on this text alone, so the same seed gives the same
// drafts.
void ModelDrafter::begin(const Task & task) {
    decoding_ = &task.decoding;
    if (inner_) {
        inner_->begin(task);
        rates_.new_text();
    }
    prompt_size_ = 0;
    listed_ = tokens_ ? std::optional(tokens_->usual()) : std::nullopt;
    num_listed_ = 0;
}

// The tokens whose logits the next decode needs; null: all.
const TokenList * ModelDrafter::listed() const {
    return listed_ && sequence_->decoder().skipping() != Skipping::no ? &*listed_ : nullptr;
}

// Where the window, which is the part of the text that the memory holds, begins in a text of `size` tokens. This place
// depends on the size alone. So the same seed gives the same text, and texts with the same beginning share cells. The
// window moves seldom and far, because after every move all its tokens have new positions and are decoded again.
std::size_t ModelDrafter::window_begin(std::size_t size) const {
    const std::size_t step = window_ - window_ / 4;
    return size <= window_ ? 0 : (size - window_ + step - 1) / step * step;
}

void ModelDrafter::observe(const DecodedBatch & batch) {
    const Reading reading = observed(batch.history, batch.unchanged);
    begin_ = window_begin(reading.size);
    text_.clear();
    read_text(batch.history, begin_, text_);
    num_listed_ = std::min(num_listed_, reading.unchanged);
    if (listed_ && num_listed_ < reading.size) {
        std::vector<int32_t> more;
        read_text(batch.history, num_listed_, more);
        for (const int32_t token : more) {
            listed_->add(token);
        }
        num_listed_ = reading.size;
    }
    if (prompt_size_ == 0) {
        prompt_size_ = reading.size;
    }
    block_begin_ = block_size_ = 0;
    sequence_->keep_common(text_);
    if (inner_) {
        inner_->observe(batch);
    }
}

void ModelDrafter::finish(const std::vector<int32_t> & history) {
    if (inner_) {
        inner_->finish(history);
    }
    const std::size_t size = observed(history, 0).size;
    if (tokens_ && prompt_size_ > 0 && size > prompt_size_) {
        std::vector<int32_t> written;
        read_text(history, prompt_size_, written);
        tokens_->count(written.data(), written.size());
    }
    prompt_size_ = 0;
    if (!sequence_->decoder().is_open()) {
        return;
    }
    try {
        const Decoder::Use in_use(sequence_->decoder());
        std::vector<int32_t> text;
        read_text(history, std::min(begin_, size), text);
        sequence_->keep(num_common(text, sequence_->tokens()));
        sequence_->drop_plan();
    } catch (const BusyError &) {  // NOLINT(bugprone-empty-catch)
        // Another target uses the draft by now, and has rolled back the draft's memory itself.
    }
}

// The last drafted token is never decoded, so n drafted tokens need n - 1 cells.
std::size_t ModelDrafter::room() const {
    return sequence_->decoder().n_ctx() + 1 - std::min(sequence_->decoder().n_ctx() + 1, text_.size());
}

// First decodes the prompt except its last token, even if more tokens follow the prompt: a recurrent memory is copied
// at this place, because the same prompt may come again.
std::size_t ModelDrafter::catch_up() {
    const std::size_t left = catch_up_self();
    DrawingDrafter * drawing = drawing_inner();
    return left == 0 && drawing != nullptr ? drawing->catch_up() : left;
}

std::size_t ModelDrafter::catch_up_self() {
    const std::size_t prompt_end = prompt_size_ - std::min(prompt_size_, begin_);
    const bool has_prompt = prompt_end > 0 && prompt_end <= text_.size();
    // Many tokens follow a prompt that is decoded late, because decoding it did not pay while its answer was short.
    const bool goes_on = !has_prompt || prompt_end + most_behind < text_.size();
    const bool is_at_prompt = has_prompt && (!goes_on || sequence_->tokens().size() + 1 < prompt_end);
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(is_at_prompt ? prompt_end : text_.size());
    const PromptPart part = next_prompt_part(*decoding_, *sequence_, {text_.begin(), end});
    if (part.count > 0) {
        decode(text_, part.count, part.count);
    }
    if (part.count < part.left) {
        return part.left - part.count;
    }
    sequence_->drop_plan();  // tokens after this may be removed again, so no other text should wait for them
    if (part.count > 0 && is_at_prompt) {
        sequence_->save_prompt();
    }
    return is_at_prompt && goes_on ? text_.size() - prompt_end : 0;
}

void ModelDrafter::probe() {
    for (int i = 0; i < 2 && tokens_to_prefill(*sequence_, text_) > 1; ++i) {
        decode(text_, 1, 0);
    }
}

std::size_t ModelDrafter::block() const { return mask_ ? paced_block : 1; }

std::optional<DraftToken> ModelDrafter::draw(const DraftRequest & request, std::size_t before,
                                             const Proposal & proposal) {
    assert(!text_.empty());
    if (!has_row(proposal)) {
        decode_block(request, proposal);
    }
    const std::size_t place = proposal.tokens.size() - block_begin_;
    std::optional<DraftToken> drawn = draw_from(sequence_->logits(block_row_ + place), request, before, proposal);
    if (drawn) {
        judge_guess(place, drawn->token);
    }
    return drawn;
}

std::optional<DraftToken> ModelDrafter::draw_from(float * logits, const DraftRequest & request, std::size_t before,
                                                  const Proposal & proposal) {
    if (!keeps_ids()) {
        return draw_mapped(request, before, proposal, logits);
    }
    const std::size_t n = std::min(request.target.n_vocab(), sequence_->decoder().n_vocab());
    const TokenList * list = listed();
    if (list == nullptr) {
        return drawn_token(request, proposal, source(), before, logits, n, nullptr);
    }
    // The logits of tokens that are not listed were not computed. So the draw uses the listed tokens only.
    list->gather(logits, n, gathered_);
    return draw_gathered(request, before, proposal, list);
}

// Draws from logits mapped to the target's tokens. q is 0 for tokens that the draft lacks.
std::optional<DraftToken> ModelDrafter::draw_mapped(const DraftRequest & request, std::size_t before,
                                                    const Proposal & proposal, const float * logits) {
    const std::size_t count = spread_logits(logits, listed(), gathered_);
    std::optional<DraftToken> drawn = draw_gathered(request, before, proposal, nullptr);
    if (drawn) {
        drawn->choices = count;
    }
    return drawn;
}

// Draws from the gathered logits. Nothing is drawn if only tokens may come next that are not listed, or that the draft
// lacks.
std::optional<DraftToken> ModelDrafter::draw_gathered(const DraftRequest & request, std::size_t before,
                                                      const Proposal & proposal, const TokenList * list) {
    std::optional<DraftToken> drawn =
        drawn_if_allowed(request, proposal, source(), before, gathered_.data(), gathered_.size(), list);
    if (!drawn) {
        listed_.reset();
        block_size_ = 0;
    }
    return drawn;
}

// Appends to `out` the draft's tokens of tokens[first ..].
void ModelDrafter::read_text(const std::vector<int32_t> & tokens, std::size_t first, std::vector<int32_t> & out) const {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
    if (map_) {
        std::transform(begin, tokens.end(), std::back_inserter(out), [this](int32_t token) { return draft_id(token); });
    } else {
        out.insert(out.end(), begin, tokens.end());
    }
}

// How many masks follow the drafted tokens in the next decode.
std::size_t ModelDrafter::num_masks(const DraftRequest & request, std::size_t drafted) const {
    if (!mask_) {
        return 0;
    }
    const std::size_t most = request.paced ? paced_block : request.gamma;
    return std::min({most, request.gamma - drafted, sequence_->decoder().n_batch()}) - 1;
}

// Whether the last decode has computed the row of logits that the next token is drawn from.
bool ModelDrafter::has_row(const Proposal & proposal) const {
    const std::size_t drafted = proposal.tokens.size();
    if (drafted >= block_begin_ + block_size_) {
        return false;
    }
    // After a token that differs from its guess, the rows belong to another text.
    std::size_t i = takes_back_ ? 0 : drafted;
    while (i < drafted && draft_id(proposal.tokens[i]) == drafted_text_[text_.size() + i]) {
        ++i;
    }
    return i == drafted;
}

// Has the inner drafter draw guesses one by one, as long as a further guess is expected to save more time than it
// takes.
std::vector<DraftToken> ModelDrafter::drawn_guesses(const DraftRequest & request, const Proposal & proposal,
                                                    std::size_t count, std::size_t most) {
    DrawingDrafter & drawing = *drawing_inner();
    const bool is_weighed = request.paced && costs_ != nullptr && !costs_->empty() && !inner_costs_.empty();
    std::vector<DraftToken> drawn;
    Proposal ahead;
    ahead.tokens = proposal.tokens;
    double survival = 1.0;
    std::size_t before = rates_.of(drawing.source()).start();
    while (drawn.size() < most && ahead.tokens.size() < drawing.room()) {
        const std::size_t rows = count + drawn.size();
        if (is_weighed && survival * rates_.of(drawing.source()).next(before) * costs_->seconds(1) <=
                              inner_costs_.seconds(1) + costs_->seconds(rows + 1) - costs_->seconds(rows)) {
            break;
        }
        std::optional<DraftToken> next = drawing.draw(request, before, ahead);
        if (!next) {
            break;
        }
        survival *= rates_.of(next->expected);
        before = next->expected.bucket;
        ahead.tokens.push_back(next->token);
        drawn.push_back(std::move(*next));
        if (request.target.is_eog(ahead.tokens.back())) {
            break;
        }
    }
    return drawn;
}

// Guesses, in the draft's vocabulary, the tokens that will be drawn after `count` tokens that are decoded anyway.
// Guesses do not change which tokens are drawn. With a pace, only as many guesses are used as save more time than they
// add to the decode: each right guess saves another decode.
std::vector<int32_t> ModelDrafter::guesses(const DraftRequest & request, const Proposal & proposal, std::size_t count) {
    guessed_.clear();
    const std::size_t most =
        std::min(request.gamma - proposal.tokens.size(), sequence_->decoder().n_batch() - count + 1) - 1;
    if (inner_ && most > 0) {
        const std::size_t wanted = std::min(most, most_guessed);
        guessed_ = drawing_inner() != nullptr ? drawn_guesses(request, proposal, count, wanted)
                                              : inner_->offer(request, proposal, wanted);
    }
    if (request.paced && costs_ != nullptr) {
        double saved = 0.0;
        double survival = 1.0;
        double best = costs_->seconds(count);
        std::size_t paying = 0;
        for (std::size_t k = 1; k <= guessed_.size(); ++k) {
            survival *= rates_.of(guessed_[k - 1].expected);
            saved += survival * costs_->seconds(1);
            if (const double net = costs_->seconds(count + k) - saved; net < best) {
                best = net;
                paying = k;
            }
        }
        guessed_.resize(paying);
    }
    std::vector<int32_t> tokens(guessed_.size());
    std::transform(guessed_.begin(), guessed_.end(), tokens.begin(),
                   [this](const DraftToken & guess) { return draft_id(guess.token); });
    return tokens;
}

// Learns whether the guess at a place was right.
void ModelDrafter::judge_guess(std::size_t place, int32_t token) {
    if (place < guessed_.size()) {
        rates_.observe(guessed_[place].expected, guessed_[place].token == token);
    }
}

void ModelDrafter::decode_block(const DraftRequest & request, const Proposal & proposal) {
    const std::size_t drafted = proposal.tokens.size();
    drafted_text_ = text_;
    read_drafted(proposal.tokens, drafted_text_);
    if (takes_back_) {  // wrong guesses may be in the memory
        sequence_->keep(std::min(num_common(drafted_text_, sequence_->tokens()), drafted_text_.size() - 1));
    }
    if (drafted > 0 && drafted <= most_saved) {
        save();
    }
    const std::size_t masks = num_masks(request, drafted);
    std::size_t count = drafted_text_.size() - sequence_->tokens().size();
    while (count + masks > sequence_->decoder().n_batch()) {
        const std::size_t part = std::min(decoding_->chunk(sequence_->decoder()), count - 1);
        decode(drafted_text_, part, part);
        count -= part;
        if (request.poll) {
            request.poll();
        }
    }
    // The first decode of a round has the tokens that the last round added (two after a round without a rejection). The
    // later decodes have one token each. Guesses or masks follow these tokens.
    const std::vector<int32_t> guessed = guesses(request, proposal, count);
    drafted_text_.insert(drafted_text_.end(), guessed.begin(), guessed.end());
    drafted_text_.insert(drafted_text_.end(), masks, mask_.value_or(0));
    decode(drafted_text_, count + guessed.size() + masks, count - 1);
    block_row_ = count - 1;
    block_begin_ = drafted;
    block_size_ = guessed.size() + masks + 1;
    sequence_->keep(drafted_text_.size() - masks);  // the masks' entries cannot stand for the real tokens
}

// Copies a recurrent memory before drafted tokens are decoded, so that a rollback need not decode the accepted tokens
// again.
void ModelDrafter::save() {
    const double before = sequence_->decode_seconds();
    sequence_->save(most_saved);
    saving_seconds_ += sequence_->decode_seconds() - before;
}

// Decodes the next `count` tokens of a text.
void ModelDrafter::decode(const std::vector<int32_t> & text, std::size_t count, std::size_t first_output) {
    const double before = sequence_->decode_seconds();
    decoding_->decode({{text.data() + sequence_->tokens().size(), count, first_output, listed()}, sequence_.get()});
    if (costs_ != nullptr && sequence_->decoder().was_warm()) {
        costs_->observe(count, sequence_->decode_seconds() - before + saving_seconds_);
    }
    saving_seconds_ = 0.0;
}

DrafterPriors model_priors() { return drawn_priors(); }

}  // namespace specllama
