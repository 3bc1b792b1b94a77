// The loop: draft -> decode -> verify -> roll back; counters.
#include "loop/speculator.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "llama/clock.hpp"
#include "math/rules/residual.hpp"
#include "pacing/pace.hpp"

namespace specllama {

namespace {

// Throws std::invalid_argument if the vocabulary lacks one of tokens[first..].
void refuse_bad_tokens(const std::vector<int32_t> & tokens, std::size_t first, const Decoder & target) {
    for (std::size_t i = first; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= target.n_vocab()) {
            throw std::invalid_argument("token " + std::to_string(tokens[i]) + " at index " + std::to_string(i) +
                                        " is out of range: the vocabulary has the tokens 0 to " +
                                        std::to_string(target.n_vocab() - 1));
        }
    }
}

// Throws std::invalid_argument for a prompt that is empty, does not fit, or has a bad token.
void refuse_bad_prompt(const std::vector<int32_t> & prompt, const Sequence & target) {
    const Decoder & decoder = target.decoder();
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty: give at least one token, such as the model's BOS token");
    }
    if (prompt.size() > decoder.n_ctx()) {
        throw std::invalid_argument("the prompt of " + std::to_string(prompt.size()) +
                                    " tokens is longer than the context: n_ctx=" + std::to_string(decoder.n_ctx()) +
                                    "; shorten it, or create the Llama with a larger n_ctx (-c)");
    }
    // Tokens that are in the memory were checked before.
    refuse_bad_tokens(prompt, num_common(prompt, target.tokens()), decoder);
}

}  // namespace

std::vector<Sequence *> Speculator::sequences() {
    std::vector<Sequence *> all{&target_sequence()};
    if (drafting_) {
        const std::vector<Sequence *> of_drafters = drafting_->sequences();
        all.insert(all.end(), of_drafters.begin(), of_drafters.end());
    }
    return all;
}

Speculator::Speculator(std::shared_ptr<Sequence> target, std::unique_ptr<Decoding> decoding,
                       std::unique_ptr<Drafting> drafting)
    : decoding_(std::move(decoding)), target_(std::move(target), *decoding_), drafting_(std::move(drafting)) {}

// Registers this text with the object that decodes for it, for the length of one call.
std::shared_ptr<void> Speculator::visit() { return decoding_->visit(sequences(), under_way_, &settings_.poll); }

void Speculator::share_costs() {
    if (pace() != nullptr) {
        decoding_->share_costs(*pace());
    }
}

void Speculator::begin(std::vector<int32_t> prompt, Settings settings) {
    const auto visiting = visit();
    refuse_bad_prompt(prompt, target_sequence());
    for (const auto & entry : settings.sampler.logit_bias) {
        refuse_bad_tokens({entry.first}, 0, target_sequence().decoder());
    }
    SamplerChain chain(settings.sampler, settings.logits_processor, settings.constraint);
    SamplerChain draft_chain(settings.sampler, nullptr, settings.constraint);

    num_observed_ = std::min(num_observed_, num_common(history_, prompt));
    history_ = std::move(prompt);
    has_embeddings_ = std::any_of(history_.begin(), history_.end(), is_embedding);
    settings_ = std::move(settings);
    draft_chain_.emplace(std::move(draft_chain));
    round_number_ = 0;
    drafting_stopped_.clear();
    round_ = Round();
    counters_ = Counters();
    counters_.num_prompt_tokens = history_.size();
    examples_.reset();
    if (settings_.num_likely > 0 && !has_embeddings_) {
        examples_.emplace(target_sequence().decoder().state_size(), settings_.num_likely);
    }
    const bool needs_states = examples_ || (drafts() && drafting_->needs_states());
    counters_.num_prompt_tokens_reused = target_.begin(history_, std::move(chain), needs_states);
    under_way_ = true;
    target_decoded_before_ = target_sequence().num_decoded();
    borrowed_before_ = target_sequence().num_borrowed();
    draft_decoded_before_ = drafting_ ? drafting_->num_decoded() : 0;
    if (drafts()) {
        share_costs();
        drafting_->begin(
            {settings_.num_draft_tokens, settings_.max_tokens, settings_.paced, *decoding_, settings_.corpus});
        observe(0, 0);
        copy_pace();
    }
}

std::vector<DrafterMemory> Speculator::memories() {
    require_generation();
    return drafts() ? drafting_->memories(text()) : std::vector<DrafterMemory>();
}

void Speculator::refilled(std::size_t num_from_ram, std::size_t num_from_disk) {
    const auto visiting = visit();
    require_generation();
    counters_.num_prompt_tokens_reused = target_sequence().keep_common(history_);
    counters_.num_prompt_tokens_from_ram = num_from_ram;
    counters_.num_prompt_tokens_from_disk = num_from_disk;
    borrowed_before_ = target_sequence().num_borrowed();
    if (drafts()) {
        drafting_->refilled(text());
        observe(history_.size() - 1, 0);
    }
}

bool Speculator::prefill() {
    const auto visiting = visit();
    require_generation();
    if (round_.is_open) {
        return false;
    }
    const Stopwatch stopwatch(round_number_ <= 1 ? counters_.prompt_seconds : counters_.draft_seconds);
    bool more = prefill_target(true);
    // In later rounds the draft decodes the tokens that it lacks when it drafts, in the same batch.
    if (!more && choose_gamma(2) > 0 && (round_number_ == 1 || drafting_->reconsiders())) {
        try {
            share_costs();
            drafting_->weigh_prompts();
            more = drafting_->prefill() > 0;
        } catch (const std::exception & error) {
            stop_drafting(error.what());
        }
    }
    count_decoded();
    return more;
}

bool Speculator::prefill_target(bool leaves_end) {
    const std::optional<std::size_t> count = target_.prefill(history_, leaves_end);
    if (count) {
        observe(target_sequence().tokens().size() - *count, *count, target_.states());
        read_along();
    }
    return count.has_value();
}

void Speculator::read_along() {
    if (!drafts()) {
        return;
    }
    try {
        drafting_->read_along();
    } catch (const std::exception & error) {
        stop_drafting(error.what());
    }
}

const Round & Speculator::step(std::size_t max_tokens) {
    if (max_tokens == 0) {
        throw std::invalid_argument("max_tokens=0: a round emits at least one token");
    }
    const auto visiting = visit();
    try {
        if (!round_.is_open) {
            draft(max_tokens);
            decoded(target_.decode(history_, proposal_.tokens, branch_rows_, copies_rows()));
        }
        verify();
    } catch (...) {
        abandon_round();
        target_.forget_carried();
        throw;
    }
    if (!round_.is_open) {
        commit();
    }
    count_decoded();
    return round_;
}

void Speculator::draft(std::size_t max_tokens) {
    forget_round();
    settle();
    observe(history_.size() - 1, 0);  // the caller may have changed the text, and another target the draft's memory
    decoding_->begin_round();
    share_costs();
    ++round_number_;
    draft_before_ = counters_.draft_seconds;
    verify_before_ = verify_seconds();
    if (target_.num_left_of_prompt() > 0 && drafts() && max_tokens > 1) {
        const Stopwatch stopwatch(counters_.prompt_seconds);
        while (prefill_target(false)) {
        }
    }
    carries_ = target_.carries();
    num_of_prompt_ = target_.num_left_of_prompt();
    propose(choose_gamma(max_tokens));
    ask_branch_rows();
    const auto & drafted = proposal_.tokens;
    sequence_ = history_;
    sequence_.insert(sequence_.end(), drafted.begin(), drafted.end());
    round_.num_drafted = drafted.size();
    round_.is_open = true;
}

// Counts a batch of the target, and shows the branch rows to their drafter.
void Speculator::decoded(double seconds) {
    read_branch_rows();
    (num_of_prompt_ > 0 ? counters_.prompt_seconds : counters_.verify_seconds) += seconds;
    counters_.num_first_tokens += num_of_prompt_ > 0 ? 1 : 0;
}

void Speculator::forget_round() {
    target_.forget_rows();
    round_ = Round();
    proposal_ = {};
    branch_rows_.clear();
}

// Ends a round whose remaining drafted tokens will not be used.
void Speculator::abandon_round() {
    if (round_.is_open && !round_.tokens.empty()) {
        counters_.add(proposal_, target_.p(), round_.tokens.size(), round_.num_accepted);
    }
    round_.is_open = false;
}

void Speculator::copy_pace() {
    if (settings_.paced && settings_.num_draft_tokens > 0 && drafting_->pace() != nullptr) {
        counters_.pace = drafting_->pace()->counters();
    }
}

void Speculator::decode_pending() {
    const auto visiting = visit();
    settle();
    forget_round();
    num_of_prompt_ = target_.num_left_of_prompt();
    decoded(target_.decode(history_, proposal_.tokens, branch_rows_, copies_rows()));
    count_decoded();
}

const float * Speculator::logits(std::size_t i) {
    if (i >= target_.num_rows()) {
        throw std::invalid_argument("no logits row " + std::to_string(i) + ": the last decode left " +
                                    std::to_string(target_.num_rows()));
    }
    return target_.row(i);
}

std::optional<double> Speculator::acceptance_probability(std::size_t i) const {
    if (i >= round_.num_accepted) {
        return std::nullopt;
    }
    return rejection_acceptance(target_.p()[i], proposal_.q[i], proposal_.tokens[i]);
}

void Speculator::rewind(std::size_t count) {
    if (count < counters_.num_prompt_tokens || count > history_.size()) {
        throw std::invalid_argument("cannot rewind to " + std::to_string(count) + " tokens: the prompt has " +
                                    std::to_string(counters_.num_prompt_tokens) + ", the history " +
                                    std::to_string(history_.size()));
    }
    abandon_round();
    history_.resize(count);
    if (examples_) {
        examples_->forget_from(count);
    }
    target_.forget_carried();
    num_observed_ = std::min(num_observed_, count);
}

void Speculator::extend(const std::vector<int32_t> & tokens) {
    refuse_bad_tokens(tokens, 0, target_sequence().decoder());
    abandon_round();
    history_.insert(history_.end(), tokens.begin(), tokens.end());
    target_.forget_carried();
}

std::size_t Speculator::finish(std::size_t count, std::size_t num_given) {
    under_way_ = false;
    const auto visiting = decoding_->visit({&target_sequence()}, under_way_, nullptr);
    const Stopwatch stopwatch(counters_.rollback_seconds);
    target_sequence().drop_plan();
    require_generation();
    rewind(count);
    target_.finish(history_);
    if (drafting_) {
        drafting_->finish(text());
        const std::size_t num_not_generated = counters_.num_prompt_tokens + num_given;
        if (count > num_not_generated && drafting_->pace() != nullptr) {
            drafting_->pace()->end_generation(count - num_not_generated, settings_.max_tokens);
        }
    }
    return target_sequence().tokens().size();
}

// Brings the target's memory in step with the history after a rewind, an extension, or a failure of the last call.
void Speculator::settle() {
    require_generation();
    const double before = target_sequence().decode_seconds();
    target_.settle(history_);
    counters_.prompt_seconds += target_sequence().decode_seconds() - before;
}

// How many tokens to draft at most: as many as were asked for, within max_tokens and the room in both contexts.
// A longer draft than there are snapshots would be decoded apart from the other texts.
std::size_t Speculator::choose_gamma(std::size_t max_tokens) const {
    const Decoder & decoder = target_sequence().decoder();
    if (!drafts() || history_.size() >= decoder.n_ctx()) {
        return 0;
    }
    const bool is_bound = settings_.paced && decoder.is_shared() && decoder.wants_equal_lengths();
    return std::min({settings_.num_draft_tokens, max_tokens - 1, decoder.n_ctx() - history_.size(), target_.room(),
                     drafting_->room(), is_bound ? decoder.num_snapshots() : settings_.num_draft_tokens});
}

// A failure of a drafter costs speed, never the text: tokens drafted before the failure are kept, and the target goes
// on alone.
void Speculator::propose(std::size_t gamma) {
    proposed_ = gamma > 0;
    if (gamma == 0) {
        return;
    }
    const double start = now_seconds();
    const double decoded_before = drafting_->decode_seconds();
    try {
        drafting_->propose({text(), num_tokens(counters_.num_prompt_tokens), gamma, target_sequence().decoder(),
                            *draft_chain_, *settings_.rule, RoundNoise{settings_.seed, round_number_, history_.size()},
                            settings_.paced, settings_.poll},
                           proposal_);
    } catch (const std::exception & error) {
        stop_drafting(error.what());
    }
    const double decode = drafting_->decode_seconds() - decoded_before;
    counters_.draft_seconds += decode;
    counters_.sample_seconds += now_seconds() - start - decode;
}

void Speculator::ask_branch_rows() {
    if (!proposed_ || !drafts()) {
        return;
    }
    try {
        branch_rows_ = drafting_->branch_rows(target_.room_for_branches(history_, proposal_.tokens.size()));
    } catch (const std::exception & error) {
        stop_drafting(error.what());
    }
}

void Speculator::read_branch_rows() {
    const Stopwatch stopwatch(counters_.sample_seconds);
    if (branch_rows_.empty()) {
        return;
    }
    std::vector<const float *> logits;
    for (std::size_t i = 0; i < branch_rows_.size(); ++i) {
        if (branch_rows_[i].wanted) {
            logits.push_back(target_.branch_logits(i));
        }
    }
    drafting_->read_branch_rows(logits, n_vocab());
}

void Speculator::verify() {
    const Stopwatch stopwatch(counters_.sample_seconds);
    const std::size_t before = sequence_.size() - round_.num_drafted;
    const TargetAt p = [&](std::size_t i) -> const Distribution & {
        return target_.p_at(i, sequence_, counters_.num_prompt_tokens, before);
    };
    const RoundNoise noise{settings_.seed, round_number_, before};
    const auto & drafted = proposal_.tokens;
    if (settings_.logits_processor && settings_.rule->about().decides_in_steps) {
        const std::size_t i = round_.tokens.size();
        const Step step = settings_.rule->decide_step(p(i), proposal_.q, drafted, noise, i);
        round_.tokens.push_back(step.token);
        round_.num_accepted += step.accepted ? 1 : 0;
        round_.is_open = step.accepted;
    } else {
        const Verdict verdict = settings_.rule->decide(p, proposal_.q, drafted, noise);
        round_.tokens.assign(drafted.begin(), drafted.begin() + static_cast<std::ptrdiff_t>(verdict.num_accepted));
        round_.tokens.push_back(verdict.next);
        round_.num_accepted = verdict.num_accepted;
        round_.is_open = false;
    }
    history_.insert(history_.end(), round_.tokens.begin() + static_cast<std::ptrdiff_t>(history_.size() - before),
                    round_.tokens.end());
}

// The round's text is final by now. If a memory cannot be brought in step with the text, drafting stops.
void Speculator::commit() {
    if (num_of_prompt_ == 0) {
        counters_.add(proposal_, target_.p(), round_.tokens.size(), round_.num_accepted);
    }
    keep_examples();
    {
        const Stopwatch stopwatch(counters_.rollback_seconds);
        const bool rolled_back = target_.roll_back(history_);
        if (!proposal_.tokens.empty() && !rolled_back) {
            stop_drafting("the target's memory could not be rolled back");
        }
        observe(history_.size() - 1 - round_.tokens.size() - num_of_prompt_, num_of_prompt_ + round_.num_accepted + 1,
                target_.states());
    }
    // A plain round that also decodes carried tokens does not show what plain decoding costs.
    const bool is_typical = !carries_ || !proposal_.tokens.empty();
    if (drafting_ && drafting_stopped_.empty() && is_typical) {
        drafting_->learn({round_.tokens, proposed_, round_.num_drafted, round_.num_accepted,
                          counters_.draft_seconds - draft_before_, verify_seconds() - verify_before_});
        copy_pace();
    }
}

// Row i of the logits follows the token with state i: the pending one, then the accepted ones.
void Speculator::keep_examples() {
    if (!examples_ || target_.states() == nullptr) {
        return;
    }
    const Stopwatch stopwatch(counters_.sample_seconds);
    const std::size_t first = history_.size() - 1 - round_.tokens.size();
    const float * state = target_.states() + (num_of_prompt_ - target_.num_without_states()) * examples_->state_size();
    for (std::size_t i = 0; i < round_.tokens.size(); ++i, state += examples_->state_size()) {
        examples_->add(first + i, state, target_.row(i), n_vocab());
    }
}

Examples Speculator::take_examples() {
    const auto empty = [this] { return Examples(examples_->state_size(), examples_->num_likely()); };
    return examples_ ? std::exchange(*examples_, empty()) : Examples(0, 0);
}

// What drafters see: the history without embeddings. Drafts may be worse without embeddings, but the text stays exact.
const std::vector<int32_t> & Speculator::text() {
    if (!has_embeddings_) {
        return history_;
    }
    text_.clear();
    std::remove_copy_if(history_.begin(), history_.end(), std::back_inserter(text_), is_embedding);
    return text_;
}

// How many of the first `count` entries of history are tokens.
std::size_t Speculator::num_tokens(std::size_t count) const {
    if (!has_embeddings_) {
        return count;
    }
    const auto end = history_.begin() + static_cast<std::ptrdiff_t>(count);
    return count - static_cast<std::size_t>(std::count_if(history_.begin(), end, is_embedding));
}

// Tells the drafters that the target has decoded and kept history[first .. first + count), with these hidden states.
void Speculator::observe(std::size_t first, std::size_t count, const float * states) {
    if (!drafts()) {
        return;
    }
    const std::size_t without = states != nullptr ? target_.num_without_states() : 0;
    first += without;
    count -= without;
    try {
        drafting_->observe({text(), num_tokens(num_observed_), num_tokens(first),
                            num_tokens(first + count) - num_tokens(first), states});
        num_observed_ = history_.size();
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
        drafting_->stop();
    }
}

void Speculator::count_decoded() {
    counters_.num_target_tokens_decoded = target_sequence().num_decoded() - target_decoded_before_;
    if (round_number_ == 0) {
        counters_.num_prompt_tokens_reused += target_sequence().num_borrowed() - borrowed_before_;
        borrowed_before_ = target_sequence().num_borrowed();
    }
    if (drafting_) {
        counters_.num_draft_tokens_decoded = drafting_->num_decoded() - draft_decoded_before_;
    }
}

}  // namespace specllama
