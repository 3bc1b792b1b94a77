// Drafters together.
#include "loop/drafting.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "drafters/table.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

constexpr std::size_t least_probed = 16;  // tokens of an answer: of a shorter one a probe takes too much time
constexpr std::size_t most_unpaced = 16;  // tokens of a drafter that no pace knows, where others are paced

// Drops what the constraint, if there is one, does not allow after history and proposal, and all after it. What was
// drawn stays: its q has seen the constraint, or is the caller's word.
void drop_forbidden(const DraftRequest & request, const Proposal & proposal, std::vector<DraftToken> & offer) {
    Constraint * constraint = request.chain.constraint();
    if (constraint == nullptr) {
        return;
    }
    std::vector<int32_t> recent = request.recent(proposal);
    std::size_t count = 0;
    for (; count < offer.size() && offer[count].q.size() == 0; ++count) {
        Candidate guess{offer[count].token, 0.0F};
        constraint->forbid(recent.data(), recent.size(), &guess, 1);
        if (guess.logit < 0.0F) {
            offer.resize(count);
            return;
        }
        recent.push_back(guess.id);
    }
}

std::vector<Expectation> expected_of(const std::vector<DraftToken> & offer) {
    std::vector<Expectation> expected(offer.size());
    std::transform(offer.begin(), offer.end(), expected.begin(),
                   [](const DraftToken & token) { return token.expected; });
    return expected;
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
        pace_.set_drawer(drawer_->source(), drawer_->n_batch(), drawer_->block());
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

bool Drafting::needs_states() const {
    return std::any_of(drafters_.begin(), drafters_.end(),
                       [](const auto & drafter) { return drafter->needs_states(); });
}

void Drafting::begin(const Task & task) {
    for (const auto & drafter : drafters_) {
        drafter->begin(task);
    }
    pace_.begin_generation();
    task_.emplace(task);
    begun_ = probes_ = false;
}

void Drafting::observe(const DecodedBatch & batch) {
    for (const auto & drafter : drafters_) {
        drafter->observe(batch);
    }
    if (!begun_ && drawer_ != nullptr) {
        prompt_pays_ = prompt_pays();
        probes_ = !prompt_pays_ && task_->max_tokens >= least_probed && pace_.probes();
    }
    begun_ = true;
}

void Drafting::finish(const std::vector<int32_t> & history) {
    for (const auto & drafter : drafters_) {
        drafter->finish(history);
    }
}

bool Drafting::prompt_pays() {
    const std::size_t missing = drawer_->missing();
    return !task_->paced || missing <= 1 || pace_.prompt_pays(missing, task_->gamma, task_->max_tokens);
}

std::size_t Drafting::prefill() {
    if (probes_) {
        probes_ = false;
        drawer_->probe();
        prompt_pays_ = prompt_pays();
    }
    return drawer_ != nullptr && prompt_pays_ ? drawer_->catch_up() : 0;
}

void Drafting::reconsider() { prompt_pays_ = prompt_pays_ && drawer_ != nullptr && prompt_pays(); }

void Drafting::propose(const DraftRequest & request, Proposal & out) {
    offered_.clear();
    used_.reset();
    paced_ = request.paced && can_be_paced_;
    DraftRequest limited = request;
    if (paced_) {
        pace_.begin_round(request.gamma, drawer_ ? drawer_->missing() : 0);
    } else if (drawer_ == nullptr && request.paced) {
        limited.gamma = std::min(request.gamma, most_unpaced);
    }
    bool more = true;
    while (more && out.tokens.size() < limited.gamma) {
        const bool is_first = out.tokens.empty();
        std::vector<Offer> offers = find(limited, out, limited.gamma - out.tokens.size());
        const Pace::Decision decision = decide(offers);
        more = go_on(limited, decision, offers, out) && !request.target.is_eog(out.tokens.back());
        if (is_first && paced_) {
            offered_ = std::move(offers);
            used_ = decision.move == Pace::Move::take ? std::optional(decision.offer) : std::nullopt;
        }
    }
}

// What must come, if anything.
Drafting::Offer Drafting::forced(const DraftRequest & request, const Proposal & out, std::size_t most) {
    for (const auto & drafter : drafters_) {
        if (drafter->forces()) {
            Offer offer = drafter->offer(request, out, most);
            if (!offer.empty()) {
                return offer;
            }
        }
    }
    return {};
}

// What can be drafted here without a decode. Where a drawer drafts all that it is asked for, only what must come.
std::vector<Drafting::Offer> Drafting::find(const DraftRequest & request, const Proposal & out, std::size_t most) {
    const bool draws_all = !paced_ && drawer_ != nullptr;
    most = draws_all ? 1 : paced_ ? std::min(most, pace_.reach()) : most;
    std::vector<Offer> all;
    if (Offer only = forced(request, out, most); !only.empty()) {
        all.push_back(std::move(only));
        return all;
    }
    for (const auto & drafter : drafters_) {
        if (drafter->forces() || draws_all) {
            continue;
        }
        Offer offer = drafter->offer(request, out, most);
        drop_forbidden(request, out, offer);
        if (!offer.empty()) {
            all.push_back(std::move(offer));
        }
    }
    return all;
}

Pace::Decision Drafting::decide(const std::vector<Offer> & offers) {
    using Move = Pace::Move;
    if (paced_) {
        std::vector<std::vector<Expectation>> expected(offers.size());
        std::transform(offers.begin(), offers.end(), expected.begin(), expected_of);
        return pace_.decide(expected);
    }
    if (drawer_ == nullptr) {
        return offers.empty() ? Pace::Decision{} : Pace::Decision{Move::take, offers[0].size(), 0};
    }
    // What nothing else can come in place of is not worth a decode.
    const bool is_certain = !offers.empty() && offers[0][0].forced;
    return {is_certain ? Move::take : Move::draw, 1, 0};
}

// Whether another decision follows.
bool Drafting::go_on(const DraftRequest & request, const Pace::Decision & decision, std::vector<Offer> & offers,
                     Proposal & out) {
    switch (decision.move) {
        case Pace::Move::draw: {
            std::optional<DraftToken> token = drawer_->draw(request, pace_.before(), out);
            if (!token) {
                return false;
            }
            append(std::move(*token), out);
            return true;
        }
        case Pace::Move::take:
            for (std::size_t i = 0; i < decision.count; ++i) {
                append(offers[decision.offer][i], out);
            }
            return true;
        case Pace::Move::stop:
            break;
    }
    return false;
}

void Drafting::append(DraftToken token, Proposal & out) {
    if (paced_) {
        pace_.drafted(token.expected);
    }
    out.append(std::move(token));
}

void Drafting::learn(const Outcome & outcome) {
    if (!outcome.proposed || !paced_) {
        pace_.decoded(outcome.num_drafted + 1, outcome.verify_seconds);
        return;
    }
    pace_.end_round(outcome.num_accepted, outcome.verify_seconds, outcome.draft_seconds);
    for (std::size_t i = 0; i < offered_.size(); ++i) {
        if (i != used_) {
            judge_unused(offered_[i], outcome.emitted);
        }
    }
}

void Drafting::judge_unused(const Offer & offer, const std::vector<int32_t> & emitted) {
    const std::size_t judged = std::min(offer.size(), emitted.size());
    std::size_t right = 0;
    while (right < judged && offer[right].token == emitted[right]) {
        ++right;
    }
    pace_.judge_unused(expected_of(offer), right, judged);
}

}  // namespace specllama
