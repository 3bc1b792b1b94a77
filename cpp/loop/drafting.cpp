// Several drafters together.
#include "loop/drafting.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "drafters/table.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

constexpr std::size_t least_probed = 16;      // tokens of an answer: for a shorter one a probe costs too much
constexpr std::size_t looking_interval = 16;  // rounds after which prompts that did not pay are decoded after all
constexpr std::size_t most_unpaced = 16;      // tokens of a round if a pace is asked for, but a drafter cannot be paced

// Drops the first token that the constraint forbids after history and proposal, and all tokens after it. Looks only at
// the tokens before the first drawn one (with a q), because the drafter that made the q has applied the constraint to
// q, or wants q as it is.
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

Drafting::Drafting(std::vector<std::shared_ptr<Drafter>> drafters)
    : drafters_(std::move(drafters)), pace_(all_priors()) {
    for (const auto & drafter : drafters_) {
        can_be_paced_ = can_be_paced_ && drafter->can_be_paced();
        DrawingDrafter * drawer = drafter->drawing();
        if (drawer == nullptr) {
            continue;
        }
        const auto is_alike = [drawer](const DrawingDrafter * other) { return other->source() == drawer->source(); };
        if (std::any_of(drawers_.begin(), drawers_.end(), is_alike)) {
            throw std::invalid_argument(
                "two drafters of one kind that draw their tokens cannot draft together: leave one out");
        }
        drawers_.push_back(drawer);
        pace_.add_drawer(drawer->source(), drawer->n_batch(), drawer->block());
    }
    for (std::size_t i = 0; i < drawers_.size(); ++i) {
        drawers_[i]->report_to(&pace_.draft(i));
    }
}

std::vector<Sequence *> Drafting::sequences() const {
    std::vector<Sequence *> all;
    for (const auto & drafter : drafters_) {
        const std::vector<Sequence *> of_one = drafter->sequences();
        all.insert(all.end(), of_one.begin(), of_one.end());
    }
    return all;
}

std::vector<DrafterMemory> Drafting::memories(const std::vector<int32_t> & history) const {
    std::vector<DrafterMemory> all;
    for (const auto & drafter : drafters_) {
        const std::vector<DrafterMemory> of_one = drafter->memories(history);
        all.insert(all.end(), of_one.begin(), of_one.end());
    }
    return all;
}

void Drafting::refilled(const std::vector<int32_t> & history) {
    for (const auto & drafter : drafters_) {
        drafter->refilled(history);
    }
}

bool Drafting::needs_states() const {
    return std::any_of(drafters_.begin(), drafters_.end(),
                       [](const auto & drafter) { return drafter->state_size() > 0; });
}

void Drafting::begin(const Task & task) {
    for (const auto & drafter : drafters_) {
        drafter->begin(task);
    }
    pace_.begin_generation();
    task_.emplace(task);
    prompt_pays_.assign(drawers_.size(), true);
    probes_.assign(drawers_.size(), false);
    num_looks_ = 0;
    reconsidered_ = begun_ = false;
}

std::size_t Drafting::room() const {
    std::size_t most = drawers_.empty() ? static_cast<std::size_t>(-1) : 0;
    for (const DrawingDrafter * drawer : drawers_) {
        most = std::max(most, drawer->room());
    }
    return most;
}

double Drafting::decode_seconds() const {
    return std::accumulate(drawers_.begin(), drawers_.end(), 0.0,
                           [](double sum, const DrawingDrafter * drawer) { return sum + drawer->decode_seconds(); });
}

std::size_t Drafting::num_decoded() const {
    return std::accumulate(drawers_.begin(), drawers_.end(), std::size_t{0},
                           [](std::size_t sum, const DrawingDrafter * drawer) { return sum + drawer->num_decoded(); });
}

void Drafting::observe(const DecodedBatch & batch) {
    for (const auto & drafter : drafters_) {
        drafter->observe(batch);
    }
    if (!begun_) {
        weigh_prompts();
        for (std::size_t i = 0; i < drawers_.size(); ++i) {
            probes_[i] = !prompt_pays_[i] && task_->max_tokens >= least_probed && pace_.probes(i);
        }
    }
    begun_ = true;
}

void Drafting::finish(const std::vector<int32_t> & history) {
    for (const auto & drafter : drafters_) {
        drafter->finish(history);
    }
}

void Drafting::weigh_prompts() {
    if (!task_->paced) {
        return;
    }
    std::vector<std::size_t> missing;
    std::transform(drawers_.begin(), drawers_.end(), std::back_inserter(missing),
                   [](const DrawingDrafter * drawer) { return drawer->missing(); });
    pace_.weigh_prompts(missing, task_->gamma, task_->max_tokens, prompt_pays_);
    for (std::size_t i = 0; i < drawers_.size(); ++i) {
        if (!prompt_pays_[i]) {
            drop_plans(*drawers_[i]);
        }
    }
}

// Tells other texts not to wait for the tokens that this drafter was about to decode.
void Drafting::drop_plans(const Drafter & drafter) {
    for (Sequence * sequence : drafter.sequences()) {
        sequence->drop_plan();
    }
}

void Drafting::stop() {
    for (const auto & drafter : drafters_) {
        drop_plans(*drafter);
    }
}

std::size_t Drafting::catch_up(std::size_t drawer) {
    if (probes_[drawer]) {
        probes_[drawer] = false;
        drawers_[drawer]->probe();
        prompt_pays_[drawer] = true;
        weigh_prompts();
    }
    return prompt_pays_[drawer] ? drawers_[drawer]->catch_up() : 0;
}

std::size_t Drafting::prefill() {
    std::size_t left = 0;
    for (std::size_t i = 0; i < drawers_.size(); ++i) {
        left += catch_up(i);
    }
    reconsidered_ = reconsidered_ && left > 0;
    return left;
}

bool Drafting::reconsiders() {
    const bool all_pay = std::all_of(prompt_pays_.begin(), prompt_pays_.end(), [](bool pays) { return pays; });
    if (!reconsidered_ && !all_pay && task_->paced && ++num_looks_ % looking_interval == 0) {
        prompt_pays_.assign(drawers_.size(), true);
        reconsidered_ = true;
    }
    return reconsidered_;
}

void Drafting::read_along() {
    for (std::size_t i = 0; i < drawers_.size(); ++i) {
        while (drawers_[i]->state_size() > 0 && catch_up(i) > 0) {
        }
    }
}

// Chooses the drafter that draws in this round. A drafter whose memory has no room for gamma tokens does not draw.
void Drafting::choose_drawer(std::size_t gamma) {
    std::vector<std::size_t> missing;
    std::transform(drawers_.begin(), drawers_.end(), std::back_inserter(missing),
                   [gamma](DrawingDrafter * drawer) { return drawer->room() >= gamma ? drawer->missing() : 0; });
    if (paced_) {
        pace_.begin_round(gamma, missing);
        drawer_ = drawers_.empty() ? nullptr : drawers_[pace_.drawer()];
        return;
    }
    const auto found = std::find_if(drawers_.begin(), drawers_.end(), [gamma](const DrawingDrafter * drawer) {
        return drawer->room() >= gamma && drawer->missing() > 0;
    });
    drawer_ = found != drawers_.end() ? *found : nullptr;
}

void Drafting::propose(const DraftRequest & request, Proposal & out) {
    offered_.clear();
    used_.reset();
    paced_ = request.paced && can_be_paced_;
    DraftRequest limited = request;
    choose_drawer(request.gamma);
    if (!paced_ && drawer_ == nullptr && request.paced) {
        limited.gamma = std::min(request.gamma, most_unpaced);
    }
    bool more = true;
    while (more && out.tokens.size() < limited.gamma) {
        const bool is_first = out.tokens.empty();
        std::vector<Offer> offers = find(limited, out, limited.gamma - out.tokens.size());
        const Pace::Decision decision = decide(offers);
        const std::size_t before = out.tokens.size();
        if (decision.move == Pace::Move::draw) {
            if (std::optional<DraftToken> token = drawer_->draw(limited, pace_.before(), out)) {
                append(std::move(*token), out);
            }
        } else if (decision.move == Pace::Move::take) {
            for (std::size_t i = 0; i < decision.count; ++i) {
                append(offers[decision.offer][i], out);
            }
        }
        more = out.tokens.size() > before && !request.target.is_eog(out.tokens.back());
        if (is_first && paced_) {
            offered_ = std::move(offers);
            used_ = decision.move == Pace::Move::take ? std::optional(decision.offer) : std::nullopt;
        }
    }
}

std::vector<BranchRow> Drafting::branch_rows(std::size_t most) {
    for (const auto & drafter : drafters_) {
        std::vector<BranchRow> rows = drafter->branch_rows(most);
        if (!rows.empty()) {
            branching_ = drafter.get();
            return rows;
        }
    }
    return {};
}

void Drafting::read_branch_rows(const std::vector<const float *> & logits, std::size_t n_vocab) {
    branching_->read_branch_rows(logits, n_vocab);
}

// The tokens that must come next; empty if no drafter knows any.
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

// Finds the tokens that can be drafted next without a decode. If a drawing drafter is to draw all tokens, only a forced
// token can replace a drawn one, so no other tokens are looked for.
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
    // A token that is certain is taken, because drawing would cost a decode.
    const bool is_certain = !offers.empty() && offers[0][0].forced;
    return {is_certain ? Move::take : Move::draw, 1, 0};
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
