// Drafters together.
#include "loop/drafting.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "drafters/table.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

constexpr std::size_t least_probed = 16;  // tokens of an answer: after fewer a probe would be felt
constexpr std::size_t most_unpaced = 16;  // tokens that nobody knows the worth of, where others are paced

// Drops what the constraint, if there is one, does not allow behind history and proposal, and all behind it.
void drop_forbidden(const DraftRequest & request, const Proposal & proposal, Offer & offer) {
    Constraint * constraint = request.chain.constraint();
    if (constraint == nullptr) {
        return;
    }
    std::vector<int32_t> recent = request.recent(proposal);
    std::size_t count = 0;
    for (; count < offer.tokens.size(); ++count) {
        Candidate guess{offer.tokens[count], 0.0F};
        constraint->forbid(recent.data(), recent.size(), &guess, 1);
        if (guess.logit < 0.0F) {
            break;
        }
        recent.push_back(guess.id);
    }
    offer.cut(count);
}

}  // namespace

Drafting::Drafting(std::vector<std::unique_ptr<Drafter>> drafters)
    : drafters_(std::move(drafters)), pace_(all_priors()) {
    for (const auto & drafter : drafters_) {
        can_be_paced_ = can_be_paced_ && drafter->can_be_paced();
        if (drafter->drawing() == nullptr) {
            continue;
        }
        if (drawer_ != nullptr) {
            throw std::invalid_argument("two drafters that draw their tokens cannot draft together: leave one out");
        }
        drawer_ = drafter->drawing();
        drawer_->report_to(&pace_.draft());
        pace_.set_drawer(drawer_->source(), drawer_->n_batch());
    }
}

std::vector<Sequence *> Drafting::sequences() const {
    std::vector<Sequence *> all;
    for (const auto & drafter : drafters_) {
        const std::vector<Sequence *> own = drafter->sequences();
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

std::size_t Drafting::room(std::size_t history_size) const {
    return drawer_ != nullptr ? drawer_->room(history_size) : static_cast<std::size_t>(-1);
}

void Drafting::begin(const std::vector<int32_t> & history, const Task & task) {
    for (const auto & drafter : drafters_) {
        drafter->begin(history, task);
    }
    pace_.begin_generation();
    task_.emplace(task);
    probes_ = false;
    if (drawer_ != nullptr) {
        prompt_pays_ = prompt_pays(history);
        probes_ = !prompt_pays_ && task.max_tokens >= least_probed && pace_.probes();
    }
}

bool Drafting::prompt_pays(const std::vector<int32_t> & history) {
    const std::size_t missing = drawer_->missing(history.size());
    return !task_->paced || missing <= 1 || pace_.prompt_pays(missing, task_->gamma, task_->max_tokens);
}

std::size_t Drafting::prefill(const std::vector<int32_t> & history) {
    if (probes_) {
        probes_ = false;
        drawer_->probe(history);
        prompt_pays_ = prompt_pays(history);
    }
    return drawer_ != nullptr && prompt_pays_ ? drawer_->prefill(history) : 0;
}

void Drafting::reconsider(const std::vector<int32_t> & history) {
    prompt_pays_ = prompt_pays_ && drawer_ != nullptr && prompt_pays(history);
}

void Drafting::commit(const std::vector<int32_t> & history) {
    for (const auto & drafter : drafters_) {
        drafter->commit(history);
    }
}

void Drafting::rewind(std::size_t count) {
    for (const auto & drafter : drafters_) {
        drafter->rewind(count);
    }
}

void Drafting::finish(const std::vector<int32_t> & history) {
    for (Sequence * sequence : sequences()) {
        if (!sequence->decoder().is_open()) {
            continue;
        }
        try {
            const Decoder::Use in_use(sequence->decoder());
            sequence->keep(num_common(history, sequence->tokens()));
            sequence->drop_plan();
        } catch (const BusyError &) {  // NOLINT(bugprone-empty-catch)
            // Another target drafts with it by now, and has said what it is to hold.
        }
    }
}

void Drafting::push(int32_t token) {
    for (const auto & drafter : drafters_) {
        drafter->push(token);
    }
}

void Drafting::propose(const DraftRequest & request, Proposal & out) {
    offered_.clear();
    used_.reset();
    dropped_.reset();
    paced_ = request.paced && can_be_paced_;
    if (paced_) {
        mix(request, out);
        drop(out);
    } else if (drawer_ != nullptr) {
        draw_all(request, out);
    } else {
        DraftRequest limited = request;
        limited.gamma = request.paced ? std::min(request.gamma, most_unpaced) : request.gamma;
        take_all(limited, out);
    }
}

// What must come, if anything.
std::optional<Drafting::Found> Drafting::forced(const DraftRequest & request, const Proposal & out, std::size_t most) {
    for (const auto & drafter : drafters_) {
        if (drafter->forces()) {
            Offer offer = drafter->offer(request, out, most);
            if (!offer.tokens.empty()) {
                return Found{drafter->source(), std::move(offer)};
            }
        }
    }
    return std::nullopt;
}

// What can be drafted here without a decode.
std::vector<Drafting::Found> Drafting::find(const DraftRequest & request, const Proposal & out, std::size_t most) {
    std::vector<Found> all;
    if (auto only = forced(request, out, most)) {
        all.push_back(std::move(*only));
        return all;
    }
    for (const auto & drafter : drafters_) {
        if (drafter->forces() || drafter->drawing() != nullptr) {
            continue;
        }
        Offer offer = drafter->offer(request, out, most);
        if (offer.q.empty()) {
            drop_forbidden(request, out, offer);
        }
        if (!offer.tokens.empty()) {
            all.push_back({drafter->source(), std::move(offer)});
        }
    }
    return all;
}

void Drafting::take(const Found & found, std::size_t count, Proposal & out) {
    for (std::size_t i = 0; i < count; ++i) {
        const int32_t token = found.offer.tokens[i];
        if (found.offer.q.empty()) {
            out.append_guess(token, found.source);
        } else {
            out.append(token, found.offer.q[i], found.source);
        }
        push(token);
    }
}

// The same token once more: it is seldom right, and makes the batch a size that costs less.
void Drafting::pad(std::size_t count, Proposal & out) {
    for (std::size_t i = 0; i < count; ++i) {
        out.append_guess(out.tokens.back(), Source::padding);
        pace_.drafted({Source::padding, 0, 0});
        push(out.tokens.back());
    }
}

void Drafting::take_all(const DraftRequest & request, Proposal & out) {
    while (out.tokens.size() < request.gamma) {
        const std::vector<Found> found = find(request, out, request.gamma - out.tokens.size());
        if (found.empty()) {
            return;
        }
        take(found.front(), found.front().offer.tokens.size(), out);
        if (request.target.is_eog(out.tokens.back())) {
            return;
        }
    }
}

// What nothing else can come in place of is not worth a decode.
void Drafting::draw_all(const DraftRequest & request, Proposal & out) {
    while (out.tokens.size() < request.gamma) {
        const auto found = forced(request, out, 1);
        if (found && found->offer.num_certain > 0) {
            take(*found, 1, out);
        } else {
            drawer_->draw(request, 0, out);
            push(out.tokens.back());
        }
        if (request.target.is_eog(out.tokens.back())) {
            return;
        }
    }
}

void Drafting::mix(const DraftRequest & request, Proposal & out) {
    pace_.begin_round(request.gamma, drawer_ ? drawer_->missing(request.history.size()) : 0, request.may_drop);
    while (out.tokens.size() < request.gamma) {
        const bool is_first = out.tokens.empty();
        std::vector<Found> found = find(request, out, std::min(request.gamma - out.tokens.size(), pace_.reach()));
        Pace::Offers offers;
        for (const Found & one : found) {
            offers.push_back(&one.offer.expectations);
        }
        const Pace::Decision decision = pace_.decide(offers);
        if (decision.move == Pace::Move::draw) {
            pace_.drafted(drawer_->draw(request, pace_.before(), out));
            push(out.tokens.back());
        } else if (decision.move == Pace::Move::take) {
            take(found[decision.offer], decision.count, out);
            for (std::size_t i = 0; i < decision.count; ++i) {
                pace_.drafted(found[decision.offer].offer.expectations[i]);
            }
        } else {
            pad(decision.count, out);
        }
        if (is_first) {
            offered_ = std::move(found);
            used_ = decision.move == Pace::Move::take ? std::optional(decision.offer) : std::nullopt;
        }
        if (decision.move == Pace::Move::stop || decision.move == Pace::Move::pad ||
            request.target.is_eog(out.tokens.back())) {
            return;
        }
    }
}

void Drafting::drop(Proposal & out) {
    num_kept_ = pace_.drop();
    if (num_kept_ < out.tokens.size()) {
        dropped_ = out.tokens[num_kept_];
        out.cut(num_kept_);
    }
}

void Drafting::learn(const Outcome & outcome) {
    if (!outcome.proposed || !paced_) {
        pace_.decoded(outcome.num_drafted + 1, outcome.verify_seconds);
        return;
    }
    pace_.end_round(outcome.num_accepted, outcome.verify_seconds, outcome.draft_seconds);
    if (dropped_ && outcome.emitted.size() == num_kept_ + 1) {
        pace_.judge_dropped(*dropped_ == outcome.emitted.back());
    }
    for (std::size_t i = 0; i < offered_.size(); ++i) {
        if (i != used_) {
            judge_unused(offered_[i].offer, outcome.emitted);
        }
    }
}

void Drafting::judge_unused(const Offer & offer, const std::vector<int32_t> & emitted) {
    const std::size_t judged = std::min(offer.tokens.size(), emitted.size());
    std::size_t right = 0;
    while (right < judged && offer.tokens[right] == emitted[right]) {
        ++right;
    }
    pace_.judge_unused(offer.expectations, right, judged);
}

}  // namespace specllama
