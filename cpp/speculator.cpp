// The loop: draft -> decode -> verify -> roll back; counters.
#include "speculator.hpp"

#include <algorithm>
#include <cassert>
#include <list>
#include <stdexcept>

#include "acceptance_rules/residual.hpp"
#include "clock.hpp"
#include "errors.hpp"
#include "pace.hpp"
#include "prefill.hpp"

namespace specllama {

// All decoders, for the length of one call.
struct Speculator::InUse {
    explicit InUse(Speculator & speculator) : heed_(&speculator.settings_.heed) {
        if (Scheduler * scheduler = speculator.target_->decoder().scheduler()) {
            visit_.emplace(*scheduler, speculator.seat_, speculator.under_way_);
        }
        use(speculator.target_->decoder());
        if (speculator.drafting_) {
            for (Sequence * sequence : speculator.drafting_->sequences()) {
                use(sequence->decoder());
            }
        }
    }

private:
    // A decoder may have several of the sequences.
    void use(Decoder & decoder) {
        if (std::find(decoders_.begin(), decoders_.end(), &decoder) == decoders_.end()) {
            uses_.emplace_back(decoder, heed_);
            decoders_.push_back(&decoder);
        }
    }

    const std::function<void()> * heed_;
    std::optional<Scheduler::Visit> visit_;
    std::vector<Decoder *> decoders_;
    std::list<Decoder::Use> uses_;
};

namespace {

void refuse_bad_prompt(const std::vector<int32_t> & prompt, std::size_t first, const Decoder & target) {
    for (std::size_t i = first; i < prompt.size(); ++i) {
        if (prompt[i] < 0 || static_cast<std::size_t>(prompt[i]) >= target.n_vocab()) {
            throw std::invalid_argument("token " + std::to_string(prompt[i]) + " at index " + std::to_string(i) +
                                        " is out of range: the vocabulary has the tokens 0 to " +
                                        std::to_string(target.n_vocab() - 1));
        }
    }
}

std::size_t num_common(const std::vector<int32_t> & one, const std::vector<int32_t> & other) {
    const auto end = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
    return static_cast<std::size_t>(end - one.begin());
}

// Recurrent memories go back to a copy, and what came behind it is decoded again: together with the next batch, which
// costs less than a decode of its own, unless it is more than this.
std::size_t most_carried(const Decoder & target) { return std::min<std::size_t>(8, target.n_batch() / 2); }

}  // namespace

Speculator::Speculator(std::shared_ptr<Sequence> target, std::unique_ptr<Drafting> drafting)
    : target_(std::move(target)), drafting_(std::move(drafting)) {}

Speculator::~Speculator() {
    if (under_way_ && target_->decoder().scheduler() != nullptr) {
        under_way_ = false;
        try {
            const InUse in_use(*this);  // to leave
        } catch (const std::exception &) {  // NOLINT(bugprone-empty-catch)
            // The scheduler is closed, and expects nobody.
        }
    }
}

// What a batch of all texts costs, as the scheduler has seen it.
void Speculator::share_costs() {
    Scheduler * scheduler = target_->decoder().scheduler();
    if (scheduler != nullptr && pace() != nullptr) {
        scheduler->share_costs(*pace());
    }
}

void Speculator::begin(std::vector<int32_t> prompt, Settings settings) {
    const InUse in_use(*this);
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty: give at least one token, such as the model's BOS token");
    }
    if (prompt.size() > target_->decoder().n_ctx()) {
        throw std::invalid_argument(
            "the prompt of " + std::to_string(prompt.size()) + " tokens is longer than the context: n_ctx=" +
            std::to_string(target_->decoder().n_ctx()) + "; shorten it, or create the Llama with a larger n_ctx");
    }
    for (const auto & entry : settings.sampler.logit_bias) {
        refuse_bad_prompt({entry.first}, 0, target_->decoder());
    }
    SamplerChain chain(settings.sampler, settings.logits_processor, settings.constraint);
    SamplerChain draft_chain(settings.sampler, nullptr, settings.constraint);
    refuse_bad_prompt(prompt, num_common(prompt, target_->tokens()), target_->decoder());

    history_ = std::move(prompt);
    settings_ = std::move(settings);
    chain_.emplace(std::move(chain));
    draft_chain_.emplace(std::move(draft_chain));
    round_number_ = 0;
    drafting_stopped_.clear();
    num_rows_ = 0;
    round_ = Round();
    num_carried_ = 0;
    counters_ = Counters();
    counters_.num_prompt_tokens = history_.size();
    counters_.num_prompt_tokens_reused = target_->keep_common(history_);
    under_way_ = true;
    target_decoded_before_ = target_->num_decoded();
    borrowed_before_ = target_->num_borrowed();
    draft_decoded_before_ = drafting_ ? drafting_->num_decoded() : 0;
    if (drafting_ && settings_.num_draft_tokens > 0) {
        share_costs();
        drafting_->begin(history_, {settings_.num_draft_tokens, settings_.max_tokens, settings_.paced});
        copy_pace();
    }
}

bool Speculator::prefill() {
    const InUse in_use(*this);
    require_generation();
    if (round_.is_open) {
        return false;
    }
    const Stopwatch stopwatch(counters_.prompt_seconds);
    bool more = false;
    target_->keep_common(history_);  // a rewind, or snapshots, may have left more in it
    if (tokens_to_prefill(*target_, history_) > num_carried_) {
        if (prefill_chunk(*target_, history_) == 0) {
            target_->save_prompt();
        }
        more = true;
    } else if (round_number_ == 0 && choose_gamma(2) > 0) {
        // Later the draft catches up where it drafts, with what it then needs in one batch.
        try {
            more = drafting_->prefill(history_) > 0;
        } catch (const std::exception & error) {
            stop_drafting(error.what());
        }
    }
    count_decoded();
    return more;
}

const Round & Speculator::step(std::size_t max_tokens) {
    if (max_tokens == 0) {
        throw std::invalid_argument("max_tokens=0: a round emits at least one token");
    }
    const InUse in_use(*this);
    if (!round_.is_open) {
        open_round(max_tokens);
    }
    try {
        if (num_rows_ == 0) {
            decode_round();
        }
        verify();
    } catch (...) {
        abandon_round();
        num_carried_ = 0;  // settle() or finish() looks at what the caches hold
        throw;
    }
    if (!round_.is_open) {
        close_round();
    }
    count_decoded();
    return round_;
}

void Speculator::open_round(std::size_t max_tokens) {
    num_rows_ = 0;
    round_ = Round();
    proposal_.clear();
    settle();
    if (Scheduler * scheduler = target_->decoder().scheduler()) {
        scheduler->begin_round(seat_);
        share_costs();
    }
    ++round_number_;
    draft_before_ = counters_.draft_seconds;
    verify_before_ = verify_seconds();
    carries_ = num_carried_ > 0;
    propose(choose_gamma(max_tokens));
    const auto & draft = proposal_.tokens;
    sequence_ = history_;
    sequence_.insert(sequence_.end(), draft.begin(), draft.end());
    round_.num_drafted = draft.size();
    round_.is_open = true;
}

void Speculator::decode_round() {
    decode_batch();
    num_rows_ = round_.num_drafted + 1;
    keep_rows();
    p_known_ = 0;
    p_.resize(std::max(p_.size(), num_rows_));
}

void Speculator::close_round() {
    counters_.add(proposal_, p_, round_.tokens.size(), round_.num_accepted);
    commit();
    // A plain round that pays for the last rejection says nothing of what plain decoding costs.
    const bool is_typical = !carries_ || !proposal_.tokens.empty();
    if (drafting_ && drafting_stopped_.empty() && is_typical) {
        learn();
    }
}

// The caller goes another way than behind the drafts that are left.
void Speculator::abandon_round() {
    if (round_.is_open && !round_.tokens.empty()) {
        counters_.add(proposal_, p_, round_.tokens.size(), round_.num_accepted);
    }
    round_.is_open = false;
}

void Speculator::learn() {
    drafting_->learn({round_.tokens, proposed_, round_.num_drafted, round_.num_accepted,
                      counters_.draft_seconds - draft_before_, verify_seconds() - verify_before_});
    copy_pace();
}

void Speculator::copy_pace() {
    if (settings_.paced && settings_.num_draft_tokens > 0 && drafting_->pace() != nullptr) {
        counters_.pace = drafting_->pace()->counters();
    }
}

void Speculator::decode_pending() {
    const InUse in_use(*this);
    settle();
    num_rows_ = 0;
    round_ = Round();
    proposal_.clear();
    decode_batch();
    num_rows_ = 1;
    keep_rows();
    count_decoded();
}

const float * Speculator::logits(std::size_t i) {
    if (i >= num_rows_) {
        throw std::invalid_argument("no logits row " + std::to_string(i) + ": the last decode left " +
                                    std::to_string(num_rows_));
    }
    return target_row(i);
}

float * Speculator::target_row(std::size_t i) {
    return rows_.empty() ? target_->logits(first_row_ + i) : rows_.data() + i * n_vocab();
}

// Other texts decode when this one is not at work: what is looked at later is copied.
void Speculator::keep_rows() {
    rows_.clear();
    if (target_->decoder().scheduler() == nullptr || !(settings_.keeps_logits || settings_.logits_processor)) {
        return;
    }
    rows_.reserve(num_rows_ * n_vocab());
    for (std::size_t i = 0; i < num_rows_; ++i) {
        const float * row = target_->logits(first_row_ + i);
        rows_.insert(rows_.end(), row, row + n_vocab());
    }
}

std::optional<double> Speculator::acceptance_probability(std::size_t i) const {
    if (i >= round_.num_accepted) {
        return std::nullopt;
    }
    return rejection_acceptance(p_[i], proposal_.q[i], proposal_.tokens[i]);
}

void Speculator::rewind(std::size_t count) {
    if (count < counters_.num_prompt_tokens || count > history_.size()) {
        throw std::invalid_argument("cannot rewind to " + std::to_string(count) + " tokens: the prompt has " +
                                    std::to_string(counters_.num_prompt_tokens) + ", the history " +
                                    std::to_string(history_.size()));
    }
    abandon_round();
    history_.resize(count);
    num_carried_ = 0;
    if (drafting_ && settings_.num_draft_tokens > 0) {
        drafting_->rewind(count);
    }
}

void Speculator::extend(const std::vector<int32_t> & tokens) {
    refuse_bad_prompt(tokens, 0, target_->decoder());
    abandon_round();
    history_.insert(history_.end(), tokens.begin(), tokens.end());
    num_carried_ = 0;
}

std::size_t Speculator::finish(std::size_t count) {
    under_way_ = false;
    std::optional<Scheduler::Visit> visit;
    if (Scheduler * scheduler = target_->decoder().scheduler()) {
        visit.emplace(*scheduler, seat_, under_way_);
    }
    const Stopwatch stopwatch(counters_.rollback_seconds);
    {
        const Decoder::Use in_use(target_->decoder());
        require_generation();
        rewind(count);
        num_rows_ = 0;
        target_->keep(num_common(history_, target_->tokens()));  // what was rejected may be in it
        target_->plan({});
    }
    if (drafting_) {
        for (Sequence * sequence : drafting_->sequences()) {
            leave(*sequence);
        }
    }
    return target_->tokens().size();
}

// What a drafter's sequence holds of another text than the history goes.
void Speculator::leave(Sequence & sequence) {
    if (!sequence.decoder().is_open()) {
        return;
    }
    try {
        const Decoder::Use in_use(sequence.decoder());
        sequence.keep(num_common(history_, sequence.tokens()));
        sequence.plan({});
    } catch (const BusyError &) {  // NOLINT(bugprone-empty-catch)
        // Another target drafts with it by now, and has said what it is to hold.
    }
}

// Brings both caches in step with the history: after a rewind, an extension, or a failure of the last call.
void Speculator::settle() {
    require_generation();
    target_->keep_common(history_);
    while (tokens_to_prefill(*target_, history_) > num_carried_) {
        const Stopwatch stopwatch(counters_.prompt_seconds);
        prefill_chunk(*target_, history_);
    }
}

// The design's rule for a fixed gamma: what was asked for, as far as max_tokens and both contexts have room.
std::size_t Speculator::choose_gamma(std::size_t max_tokens) const {
    if (!drafting_ || settings_.num_draft_tokens == 0 || !drafting_stopped_.empty() ||
        history_.size() >= target_->decoder().n_ctx()) {
        return 0;
    }
    return std::min({settings_.num_draft_tokens, max_tokens - 1, target_->decoder().n_ctx() - history_.size(),
                     target_->decoder().n_batch() - 1 - std::min(num_carried_, most_carried(target_->decoder())),
                     drafting_->room(history_.size())});
}

// A draft that fails costs speed, never the text: what it has drawn is kept, and the target goes on alone.
void Speculator::propose(std::size_t gamma) {
    proposed_ = gamma > 0;
    if (gamma == 0) {
        if (drafting_ && settings_.num_draft_tokens > 0 && drafting_->room(history_.size()) == 0) {
            stop_drafting("the draft's context is full: give it a larger n_ctx by draft_kwargs");
        }
        return;
    }
    const double start = now_seconds();
    const double decoded_before = drafting_->decode_seconds();
    try {
        drafting_->commit(history_);
        drafting_->propose(
            {history_, counters_.num_prompt_tokens, gamma, target_->decoder(), *draft_chain_, *settings_.rule,
             RoundNoise{settings_.seed, round_number_, history_.size()}, settings_.paced,
             settings_.rule->about().independent_of_draft || settings_.sampler.temperature == 0.0F, settings_.heed},
            proposal_);
    } catch (const std::exception & error) {
        stop_drafting(error.what());
    }
    const double decode = drafting_->decode_seconds() - decoded_before;
    counters_.draft_seconds += decode;
    counters_.sample_seconds += now_seconds() - start - decode;
}

// [what a rollback has left to decode again, pending, d_1, .., d_gamma], with logits from pending on.
void Speculator::decode_batch() {
    const double before = target_->decode_seconds();
    if (num_carried_ > most_carried(target_->decoder())) {
        while (prefill_chunk(*target_, history_) > 0) {
        }
    }
    num_held_ = target_->tokens().size();
    batch_.assign(history_.begin() + static_cast<std::ptrdiff_t>(num_held_), history_.end());
    first_row_ = batch_.size() - 1;
    batch_.insert(batch_.end(), proposal_.tokens.begin(), proposal_.tokens.end());
    if (proposal_.tokens.size() > target_->decoder().num_snapshots()) {
        target_->save(1);
    }
    target_->decode(batch_.data(), batch_.size(), first_row_);
    counters_.verify_seconds += target_->decode_seconds() - before;
}

void Speculator::verify() {
    const Stopwatch stopwatch(counters_.sample_seconds);
    if (settings_.logits_processor && settings_.rule->about().decides_in_steps) {
        const Step step = decide_next();
        round_.tokens.push_back(step.token);
        round_.num_accepted += step.accepted ? 1 : 0;
        round_.is_open = step.accepted;
    } else {
        const Verdict verdict = decide();
        const auto & draft = proposal_.tokens;
        round_.tokens.assign(draft.begin(), draft.begin() + static_cast<std::ptrdiff_t>(verdict.num_accepted));
        round_.tokens.push_back(verdict.next);
        round_.num_accepted = verdict.num_accepted;
        round_.is_open = false;
    }
    const std::size_t before = sequence_.size() - round_.num_drafted;
    history_.insert(history_.end(), round_.tokens.begin() + static_cast<std::ptrdiff_t>(history_.size() - before),
                    round_.tokens.end());
}

// p_{i+1}, with the history that its position really has.
const Distribution & Speculator::target_at(std::size_t i) {
    const std::size_t num_before = sequence_.size() - round_.num_drafted - counters_.num_prompt_tokens;
    for (; p_known_ <= i; ++p_known_) {
        chain_->apply(target_row(p_known_), target_->decoder().n_vocab(),
                      sequence_.data() + counters_.num_prompt_tokens, num_before + p_known_, p_[p_known_]);
    }
    return p_[i];
}

// Of the round that is open: its first drafted token comes behind the history as it was then.
RoundNoise Speculator::noise() const { return {settings_.seed, round_number_, sequence_.size() - round_.num_drafted}; }

Verdict Speculator::decide() {
    const TargetAt p = [this](std::size_t i) -> const Distribution & { return target_at(i); };
    return settings_.rule->decide(p, proposal_.q, proposal_.tokens, noise());
}

Step Speculator::decide_next() {
    const std::size_t i = round_.tokens.size();
    return settings_.rule->decide_step(target_at(i), proposal_.q, proposal_.tokens, noise(), i);
}

void Speculator::commit() {
    const Stopwatch stopwatch(counters_.rollback_seconds);
    // Snapshots are good for one rollback: with them it waits for the next round, or for finish(), which may go
    // further.
    if (target_->tokens().size() + 1 > history_.size() + target_->num_forgettable()) {
        target_->keep_common(history_);
    }
    const bool rolled_back = target_->tokens().size() >= num_held_;
    num_carried_ = rolled_back ? tokens_to_prefill(*target_, history_) : 0;
    if (!proposal_.tokens.empty()) {
        roll_back_draft();
        if (!rolled_back) {
            stop_drafting("the target's memory could not be rolled back");
        }
    }
    assert(target_->tokens().size() < history_.size() + target_->num_forgettable());
}

// The round's text is safe by now: a draft that cannot follow is left behind.
void Speculator::roll_back_draft() {
    try {
        drafting_->commit(history_);
    } catch (const std::exception & error) {
        stop_drafting(error.what());
    }
}

void Speculator::require_generation() const {
    if (history_.empty()) {
        throw std::invalid_argument("there is no generation: call begin() first");
    }
}

void Speculator::stop_drafting(const std::string & why) {
    if (drafting_stopped_.empty()) {
        drafting_stopped_ = why;
    }
}

void Speculator::count_decoded() {
    counters_.num_target_tokens_decoded = target_->num_decoded() - target_decoded_before_;
    if (round_number_ == 0) {
        counters_.num_prompt_tokens_reused += target_->num_borrowed() - borrowed_before_;
        borrowed_before_ = target_->num_borrowed();
    }
    if (drafting_) {
        counters_.num_draft_tokens_decoded = drafting_->num_decoded() - draft_decoded_before_;
    }
}

}  // namespace specllama
