// How much to draft next, and from where, from measured costs and acceptance. Knows neither llama.cpp nor Python.
#include "pacing/pace.hpp"

#include <algorithm>
#include <limits>

namespace specllama {

namespace {

// The most tokens that a drawer (a drafter that decodes) usually lacks when it begins to draft: the prompt's last one,
// and the answer's first.
constexpr std::size_t most_pending = 2;

std::size_t whole(double value) { return static_cast<std::size_t>(value); }

// The factor by which a sum fades each time, if it is to remember about `times` entries.
double kept_of(double times) { return 1.0 - 1.0 / times; }

}  // namespace

void Pace::begin_generation() {
    credit_ = constants_.first_credit +
              std::clamp(credit_, -constants_.largest_credit, 0.0);  // a debt of the last text is still owed
    of_all_ = Yield();
    for (Drawer & drawer : drawers_) {
        drawer.yield.fade(constants_.kept_of_text);
    }
    rates_.new_text();
    window_ = whole(constants_.first_window);
    counters_ = PaceCounters();
    num_emitted_ = 0;
    max_tokens_ = std::numeric_limits<std::size_t>::max();
}

void Pace::end_generation(std::size_t num_tokens, std::size_t max_tokens) {
    const double kept = kept_of(constants_.remembered_answers);
    answer_tokens_ = kept * answer_tokens_ + static_cast<double>(num_tokens);
    num_answers_ = kept * num_answers_ + (num_tokens < max_tokens ? 1.0 : 0.0);
}

// How many tokens are likely to follow. A text that is already longer than usual is expected to become twice as long.
// With such a rule for an unknown length, the cost is at most twice the cost if the length were known (Karlin et al.
// 1988, "ski rental").
double Pace::expected_left() const {
    const double usual = (constants_.usual_answer + answer_tokens_) / (1.0 + num_answers_);
    const auto emitted = static_cast<double>(num_emitted_);
    return std::clamp(static_cast<double>(max_tokens_) - emitted, 0.0, std::max(usual, emitted));
}

void Pace::weigh_prompts(const std::vector<std::size_t> & missing, std::size_t most, std::size_t max_tokens,
                         std::vector<bool> & pay) {
    std::vector<std::size_t> order(drawers_.size());
    std::vector<double> usual(drawers_.size());
    for (drawer_ = 0; drawer_ < drawers_.size(); ++drawer_) {
        order[drawer_] = drawer_;
        usual[drawer_] = drawn_yield(drawn().any().mean(), 1, most).rate();
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return usual[a] > usual[b]; });
    max_tokens_ = max_tokens;
    double without = target_.seconds(1);  // seconds for a token without this drawer
    counters_.num_draft_prompts_skipped = 0;
    for (const std::size_t number : order) {
        drawer_ = number;
        const bool pays =
            target_.empty() || current().costs.empty() || missing[number] <= most_pending ||
            expected_left() * (without - 1.0 / drawn_yield(drawn().any().optimistic(constants_.hope), 1, most).rate()) >
                catching_up_seconds(missing[number]) - one_draft_seconds();
        pay[number] = pay[number] && pays;
        if (pay[number] && !current().costs.empty()) {
            without = std::min(without, 1.0 / usual[number]);
        }
        counters_.num_draft_prompts_skipped += pay[number] ? 0 : 1;
    }
    drawer_ = 0;
}

bool Pace::probes(std::size_t drawer) {
    Drawer & it = drawers_[drawer];
    const bool now = it.spared == 0;
    it.spared = (it.spared + 1) % whole(constants_.probing_interval);
    if (now) {
        it.costs.distrust_level();
    }
    return now;
}

void Pace::begin_round(std::size_t most, const std::vector<std::size_t> & missing) {
    // Plain decoding is measured first, and again now and then, because everything is compared with its cost. With
    // several texts this is not needed: batches of all sizes come by themselves.
    const bool measuring =
        texts_ > 1 ? target_.empty()
                   : target_.count(1) < whole(constants_.first_plain_rounds) || since_plain_ >= plain_interval();
    most_ = measuring ? 0 : most;
    num_drawn_ = 0;
    survival_ = 1.0;
    tokens_.clear();
    choose_drawer(missing);
    idle_ = measuring ? Idle::measuring : missing_ == 0 ? Idle::no_match : Idle::not_worth_it;
    measures_ = exploring_ = most_ > 0 && missing_ > 0 && !is_measured();
    if (most_ > 0 && missing_ > 0 && !measures_ && !drawing_pays()) {
        missing_ = 0;
        spare(drawer_);
    }
}

// Chooses the drawer (a drafter that decodes) that this round uses: one that was never measured, else the one that
// earns the most tokens per second if its acceptance rate is at the upper end of the uncertainty. Nothing is learned of
// the other drawers in this round. So their observations count for less and less, and the uncertainty grows, until one
// of them is tried again.
void Pace::choose_drawer(const std::vector<std::size_t> & missing) {
    std::size_t best = 0;
    double best_rate = -1.0;
    for (drawer_ = 0; drawer_ < drawers_.size(); ++drawer_) {
        missing_ = missing[drawer_];
        const bool is_compared = missing_ > 0 && most_ > 0 && drawers_.size() > 1;
        const double rate = !is_compared    ? 0.0
                            : is_measured() ? usual_drawn_yield(drawn().any().optimistic()).rate()
                                            : std::numeric_limits<double>::infinity();
        if (rate > best_rate) {
            best = drawer_;
            best_rate = rate;
        }
    }
    drawer_ = best;
    missing_ = missing_at_first_ = drawers_.empty() ? 0 : missing[best];
    for (std::size_t other = 0; other < drawers_.size() && most_ > 0; ++other) {
        if (other != best && missing[other] > 0) {
            spare(other);
        }
    }
}

void Pace::spare(std::size_t drawer) {
    rates_.of(drawers_[drawer].source).forget(kept_of(constants_.forgetting_rounds));
    drawers_[drawer].yield.fade(kept_of(constants_.forgetting_rounds));
}

// Whether the cost of the drawer's tokens is known: the drawer has decoded a small batch, of at most one block and the
// tokens of the first plain rounds. The time for its prompt says little about this cost. An expensive batch must be
// measured twice, because the first one may have been held up, as the first batch of a size is on a GPU.
bool Pace::is_measured() const {
    const std::size_t few = current().block + whole(constants_.first_plain_rounds);
    const bool is_cheap = one_draft_seconds() < constants_.dear_draft * target_.seconds(1);
    return current().costs.has_seen(few) && (is_cheap || current().costs.is_sure(few));
}

// Whether the drawer is worth considering in this round. If it would pay only with a higher acceptance than so far,
// trying it costs credit.
bool Pace::drawing_pays() {
    const double plain = 1.0 / target_.seconds(1);
    if (usual_drawn_yield().rate() > plain) {
        return true;
    }
    exploring_ =
        credit_ >= exploring_cost(1) && drawn_yield(drawn().any().optimistic(), missing_, most_).rate() > plain;
    return exploring_;
}

// How much longer a round with k drawn tokens is expected to take than plain decoding of the tokens that it is expected
// to emit, in plain decodes.
double Pace::exploring_cost(std::size_t k) const {
    const double draft_seconds = catching_up_seconds(missing_) + further_draft_seconds(k);
    double tokens = 1.0;
    double survival = 1.0;
    for (std::size_t i = 0; i < k; ++i) {
        survival *= drawn().any().mean();
        tokens += survival;
    }
    return (draft_seconds + target_.seconds(k + 1)) / target_.seconds(1) - tokens;
}

// The yield of a round if every drawn token is accepted with probability `acceptance`, and the best number of tokens is
// drawn.
Yield Pace::drawn_yield(double acceptance, std::size_t missing, std::size_t most) const {
    Yield best;
    double survival = 1.0;
    double tokens = 1.0;
    for (std::size_t k = 1; k <= std::min(most, whole(constants_.most_drawn)); ++k) {
        survival *= acceptance;
        tokens += survival;
        const double draft_seconds = first_draft_seconds(missing) + further_draft_seconds(k);
        const Yield yield{1.0, tokens, draft_seconds + target_.seconds(k + 1)};
        best = yield.rate() > best.rate() ? yield : best;
    }
    return best;
}

// The yield of a round that begins with a drawn token, judged by the last such rounds. Unlike drawn_yield() it includes
// the gain of stopping after an unsure token.
Yield Pace::usual_drawn_yield(double acceptance) const {
    Yield usual = drawn_yield(acceptance, 1, most_);
    usual.fade(constants_.prior_rounds);
    usual.add(current().yield);
    usual.fade(1.0 / usual.rounds);
    usual.seconds += first_draft_seconds(missing_) - one_draft_seconds();
    return usual;
}

double Pace::first_draft_seconds(std::size_t missing) const {
    const double one = one_draft_seconds();
    return one + constants_.catching_up_share * std::max(0.0, catching_up_seconds(missing) - one);
}

// The seconds that k drawn tokens cost beyond the draft's first decode.
double Pace::further_draft_seconds(std::size_t k) const {
    const std::size_t num_decodes = (k - 1) / current().block;
    return static_cast<double>(num_decodes) * one_draft_seconds();
}

// The seconds that the draft needs to decode `missing` tokens, and to draw the next ones.
double Pace::catching_up_seconds(std::size_t missing) const {
    const Drawer & it = current();
    const std::size_t all = missing + it.block - 1;
    const std::size_t rest = all % it.n_batch;
    const std::size_t whole_batches = all / it.n_batch;
    return static_cast<double>(whole_batches) * it.costs.seconds(it.n_batch) +
           (rest > 0 ? it.costs.seconds(rest) : 0.0);
}

// The tokens per second of the last rounds, but at least those of plain decoding.
double Pace::earned() const {
    const double plain = 1.0 / target_.seconds(1);
    return std::max(plain,
                    (of_all_.tokens + constants_.prior_rounds) / (of_all_.seconds + constants_.prior_rounds / plain));
}

// What a second is worth, in tokens: as much as the last rounds earned, but no more than the next ones may well earn. A
// long copy earns much, but when it has ended, this says nothing about the rounds after it.
double Pace::rate() const {
    const double usual = missing_at_first_ > 0 ? usual_drawn_yield().rate() : 0.0;
    return std::max(1.0 / target_.seconds(1), std::min(earned(), usual));
}

// How many rounds may draft before plain decoding is measured again: so many that measuring costs a small share of the
// time. Where drafting gains little, the measurement matters most, and it costs next to nothing.
std::size_t Pace::plain_interval() const {
    if (of_all_.rounds < constants_.prior_rounds) {
        return whole(constants_.largest_interval);
    }
    const double lost = target_.seconds(1) - 1.0 / earned();
    const double rounds = lost * of_all_.rounds / (constants_.measuring_share * of_all_.seconds);
    return whole(std::clamp(rounds, constants_.least_interval, constants_.largest_interval));
}

std::size_t Pace::before() const {
    return !tokens_.empty() && is_drawn(tokens_.back()) ? tokens_.back().bucket : first_bucket();
}

Pace::Decision Pace::decide(const Offers & offers) {
    const std::size_t done = tokens_.size();
    if (done >= most_) {
        return {};
    }
    if (std::any_of(offers.begin(), offers.end(), [](const auto & offer) { return !offer.empty(); })) {
        idle_ = Idle::not_worth_it;
    }
    if (measures_) {
        return done == 0 ? Decision{Move::draw, 1, 0} : Decision{};
    }
    const double rho = rate();
    const double stop = target_.seconds(done + 1);
    Decision best;
    double best_net = 0.0;
    double drawing = drawn_run(survival_, -stop, done, missing_, before(), rho);
    if (done == 0 && missing_ > 0) {
        const Yield usual = usual_drawn_yield();
        drawing = std::max(drawing, usual.tokens - 1.0 - rho * (usual.seconds - stop));
    }
    if (drawing > best_net && !(exploring_ && exploring_cost(done + 1) > credit_)) {
        best = {Move::draw, 1, 0};
        best_net = drawing;
    }
    const Decision take = best_take(offers, rho, best_net);
    return take.move == Move::stop ? best : take;
}

// Decides to take the beginning of an offer that has the largest net gain, in tokens, above `best_net`; or to stop if
// there is none.
Pace::Decision Pace::best_take(const Offers & offers, double rho, double best_net) const {
    Decision best;
    for (std::size_t number = 0; number < offers.size(); ++number) {
        const std::vector<Part> parts = parts_of(offers[number], rho);
        if (parts.empty()) {
            continue;
        }
        // If all of a copied part is right, the next round goes on copying. A part so long that some of it is probably
        // wrong loses this gain.
        const auto by_net = [](const Part & a, const Part & b) { return a.net < b.net; };
        const double next = std::max(0.0, std::max_element(parts.begin(), parts.end(), by_net)->net);
        const bool copies = rates_.of(offers[number].front().source).copies();
        const auto with_next = [&](const Part & part) { return part.net + (copies ? part.survival * next : 0.0); };
        const auto part = std::max_element(parts.begin(), parts.end(),
                                           [&](const Part & a, const Part & b) { return with_next(a) < with_next(b); });
        if (part->net > best_net) {
            best = {Move::take, static_cast<std::size_t>(part - parts.begin()) + 1, number};
            best_net = part->net;
        }
    }
    return best;
}

// The values of the beginnings of an offer: of its first token, its first two tokens, and so on, as many as may be
// taken.
std::vector<Pace::Part> Pace::parts_of(const std::vector<Expectation> & offer, double rho) const {
    const std::size_t done = tokens_.size();
    const double stop = target_.seconds(done + 1);
    const std::size_t start = first_bucket();
    std::vector<Part> parts;
    double survival = survival_;
    double gain = 0.0;
    for (std::size_t k = 1; k <= std::min({offer.size(), most_ - done, window_}); ++k) {
        survival *= rates_.of(offer[k - 1]);
        gain += survival;
        const double alone = gain - rho * (target_.seconds(done + k + 1) - stop);
        const std::size_t missing = missing_ > 0 ? missing_ + k : 0;
        const double continued = gain + drawn_run(survival, -stop, done + k, missing, start, rho);
        parts.push_back({std::max(alone, continued), survival});
    }
    return parts;
}

// The best net gain, in tokens, of drawing one token or more, after `drafted` tokens that survive verification with
// probability `survival`; minus infinity if none can be drawn. Of the target's batch, only the time beyond
// `time_so_far` is counted.
double Pace::drawn_run(double survival, double time_so_far, std::size_t drafted, std::size_t missing,
                       std::size_t before, double rho) const {
    double best = -std::numeric_limits<double>::infinity();
    if (missing == 0) {
        return best;
    }
    double gain = 0.0;
    double draft_time = 0.0;
    for (std::size_t k = 1; drafted + k <= most_ && num_drawn_ + k <= whole(constants_.most_drawn); ++k) {
        const double usual = exploring_ ? drawn().any().optimistic() : drawn().any().mean();
        survival *= k == 1 && !exploring_ ? drawn().next(before) : usual;
        gain += survival;
        if ((num_drawn_ + k - 1) % current().block == 0) {
            draft_time += k == 1 ? first_draft_seconds(missing) : one_draft_seconds();
        }
        const double net = gain - rho * (draft_time + target_.seconds(drafted + k + 1) + time_so_far);
        best = std::max(best, net);
    }
    return best;
}

void Pace::drafted(const Expectation & token) {
    num_drawn_ += is_drawn(token) ? 1 : 0;
    tokens_.push_back(token);
    survival_ *= rates_.of(token);
    if (missing_ > 0) {
        missing_ = is_drawn(token) ? 1 : missing_ + 1;
    }
}

// The expected number of tokens of this round. It is used instead of the real number, because a few lucky rounds must
// not make the next rounds look poor.
double Pace::expected_tokens() const {
    double expected = 1.0;
    double survival = 1.0;
    for (const Expectation & token : tokens_) {
        survival *= rates_.of(token);
        expected += survival;
    }
    return expected;
}

void Pace::end_round(std::size_t num_accepted, double verify_seconds, double draft_seconds) {
    num_emitted_ += num_accepted + 1;
    const double expected = expected_tokens();
    const double usual_seconds = target_.empty() ? verify_seconds : target_.seconds(tokens_.size() + 1);
    counters_.predicted_tokens += expected;
    counters_.predicted_seconds += draft_seconds + usual_seconds;
    of_all_.fade(kept_of(constants_.remembered_rounds));
    // With several texts, the measured time is an equal share of the batch. But each text pays for the time that its
    // own tokens add to the batch, so the expected time is used.
    const double spent = (texts_ > 1 ? usual_seconds : verify_seconds) + draft_seconds;
    of_all_.add({1.0, expected, spent});
    const bool began_drawn = !tokens_.empty() && is_drawn(tokens_.front());
    if (began_drawn) {
        current().spared = 1;
    }
    if (began_drawn && !measures_) {
        const double catching_up = catching_up_seconds(missing_at_first_);
        const double late = catching_up - current().costs.seconds(current().block + (missing_at_first_ > 1 ? 1 : 0));
        // One batch that was held up, as the first batch of each size is on a GPU, must not make all such rounds look
        // poor.
        const double took =
            std::min(draft_seconds, constants_.most_held_up * (catching_up + further_draft_seconds(num_drawn_)));
        current().yield.fade(kept_of(constants_.remembered_rounds));
        // The expected number of tokens is less noisy, the real number is not biased: both are used.
        const double came = 1.0 + static_cast<double>(num_accepted);
        const double tokens = expected + constants_.realised_share * (came - expected);
        current().yield.add({1.0, tokens, usual_seconds + std::max(0.0, took - std::max(0.0, late))});
    }

    target_.observe(tokens_.size() + 1, verify_seconds);
    since_plain_ = tokens_.empty() ? 0 : since_plain_ + 1;
    for (std::size_t i = 0; i < std::min(num_accepted + 1, tokens_.size()); ++i) {
        rates_.observe(tokens_[i], i < num_accepted);
    }
    adapt_window(num_accepted);
    if (tokens_.empty()) {
        counters_.idle_rounds[static_cast<std::size_t>(idle_)] += 1;
    }
    counters_.plain_seconds = target_.seconds(1);
    if (counters_.plain_seconds <= 0.0) {
        credit_ = constants_.largest_credit;  // with several texts, no cost is known yet
        return;
    }
    const double in_plain = spent / counters_.plain_seconds;
    const double lost = exploring_ && num_drawn_ > 0 ? in_plain - static_cast<double>(num_accepted + 1) : 0.0;
    const double charged = measures_ ? std::min(lost, std::max(0.0, credit_)) : lost;  // a measurement makes no debts
    credit_ = std::min(credit_ + constants_.exploring_share * in_plain - charged, constants_.largest_credit);
    counters_.exploring_seconds += std::max(0.0, lost) * counters_.plain_seconds;
}

void Pace::decoded(std::size_t count, double seconds) {
    num_emitted_ += 1;
    target_.observe(count, seconds);
    if (count == 1) {
        since_plain_ = 0;
    }
}

// Adapts how many tokens of a copy one round takes. Long copies are expensive to try, and other texts say little about
// how far this text repeats. So the window begins small, and doubles while all its tokens are right (as TCP's slow
// start does).
void Pace::adapt_window(std::size_t num_accepted) {
    std::size_t first = 0;
    while (first < tokens_.size() && !rates_.of(tokens_[first].source).copies()) {
        ++first;
    }
    std::size_t end = first;
    while (end < tokens_.size() && rates_.of(tokens_[end].source).copies()) {
        ++end;
    }
    if (end == first || num_accepted < first) {
        return;
    }
    const std::size_t right = std::min(num_accepted, end) - first;
    if (num_accepted >= end) {
        window_ = std::max(window_, 2 * right + 1);
    } else {
        window_ = std::clamp(2 * right, std::min(window_, whole(constants_.first_window)), window_);
    }
}

void Pace::judge_unused(const std::vector<Expectation> & offer, std::size_t num_right, std::size_t num_judged) {
    for (std::size_t i = 0; i < std::min({num_right + 1, num_judged, offer.size()}); ++i) {
        rates_.observe(offer[i], i < num_right);
    }
}

}  // namespace specllama
