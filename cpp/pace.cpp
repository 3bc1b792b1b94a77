// How much to draft next, and from where, from measured costs and acceptance. Knows neither llama.cpp nor Python.
#include "pace.hpp"

#include <algorithm>
#include <limits>

namespace specllama {

namespace {

constexpr double fading = 0.9;              // of rounds in the rate: some 10 are remembered
constexpr double prior_rounds = 8.0;        // of plain decoding, before there are others
constexpr double catching_up_share = 0.15;  // of its cost is charged to one round: the next ones profit, too
constexpr double forgetting = 0.99;         // of what is known of the model, for each round without it
constexpr double exploring_share = 0.01;    // of all time
constexpr double model_prior_rounds = 3.0;  // that go by the acceptance alone
constexpr double model_fading = 0.93;       // of rounds of the model
constexpr double realised_share = 0.8;      // of what came in them, beside what was expected
constexpr double kept = 0.3;                // of what is particular to a text, for the next one
constexpr std::size_t first_plain_rounds = 2;
constexpr double measuring_share = 0.006;  // of all time
constexpr std::size_t least_interval = 8;  // rounds between two that measure plain decoding
constexpr std::size_t largest_interval = 100;
constexpr double few_rounds = 4.0;  // too few to say what drafting gains
constexpr std::size_t first_window = 3;
constexpr double first_credit = 1.0;  // in plain decodes
constexpr double largest_credit = 3.0;
constexpr std::size_t most_padding = 3;
constexpr double padding_gain = 0.97;  // a larger batch must be so much cheaper
constexpr double hope = 0.5;  // standard errors of the acceptance: without its prompt a draft is never found to be good
constexpr std::size_t probing_interval = 8;  // prompts that the draft is spared
constexpr std::size_t usual_answer = 128;    // tokens; max_tokens is often far more than what comes

}  // namespace

void Pace::begin_generation() {
    credit_ = first_credit + std::clamp(credit_, -largest_credit, 0.0);  // what was lost beyond it is still owed
    of_all_ = Yield();
    of_model_.fade(kept);
    acceptance_.new_text();
    window_ = first_window;
    counters_ = PaceCounters();
}

bool Pace::prompt_pays(std::size_t missing, std::size_t most, std::size_t max_tokens) {
    const bool pays =
        target_.empty() || draft_.empty() ||
        static_cast<double>(std::min(max_tokens, usual_answer)) *
                (target_.seconds(1) - 1.0 / model_yield(acceptance_.model().optimistic(hope), 1, most).rate()) >
            catching_up_seconds(missing) - draft_.seconds(1);
    counters_.prompt_skipped = !pays;
    return pays;
}

bool Pace::probes() {
    const bool now = since_model_ == 0;
    since_model_ = (since_model_ + 1) % probing_interval;
    if (now) {
        draft_.distrust_level();
    }
    return now;
}

void Pace::begin_round(std::size_t most, std::size_t missing, bool may_drop) {
    // What plain decoding costs is measured first, and again now and then: everything is compared with it.
    const bool measuring = target_.count(1) < first_plain_rounds || since_plain_ >= plain_interval();
    idle_ = measuring ? Idle::measuring : missing == 0 ? Idle::no_match : Idle::not_worth_it;
    most_ = measuring ? 0 : most;
    missing_ = missing_at_first_ = missing;
    may_drop_ = may_drop;
    exploring_ = with_model_ = uses_model_ = false;
    survival_ = 1.0;
    tokens_.clear();
    if (most_ > 0 && missing_ > 0 && !model_pays()) {
        missing_ = 0;
        acceptance_.forget_model(forgetting);
        of_model_.fade(forgetting);
    }
}

// Whether the model is worth considering in this round. If it pays only should its acceptance be better than it was so
// far, that costs credit.
bool Pace::model_pays() {
    const double plain = 1.0 / target_.seconds(1);
    if (usual_model_yield().rate() > plain) {
        return true;
    }
    exploring_ =
        credit_ >= exploring_cost(1) && model_yield(acceptance_.model().optimistic(), missing_, most_).rate() > plain;
    return exploring_;
}

// What drafting k tokens with the model is expected to cost, in plain decodes.
double Pace::exploring_cost(std::size_t k) const {
    const double draft_seconds = catching_up_seconds(missing_) + static_cast<double>(k - 1) * draft_.seconds(1);
    double tokens = 1.0;
    double survival = 1.0;
    for (std::size_t i = 0; i < k; ++i) {
        survival *= acceptance_.model().mean();
        tokens += survival;
    }
    return (draft_seconds + target_.seconds(k + 1)) / target_.seconds(1) - tokens;
}

// What a round yields if every token of the model is accepted so often, with the number of them that is best then.
Yield Pace::model_yield(double acceptance, std::size_t missing, std::size_t most) const {
    Yield best;
    double survival = 1.0;
    double tokens = 1.0;
    for (std::size_t k = 1; k <= most; ++k) {
        survival *= acceptance;
        tokens += survival;
        const double draft_seconds = first_draft_seconds(missing) + static_cast<double>(k - 1) * draft_.seconds(1);
        const Yield yield{1.0, tokens, draft_seconds + target_.seconds(k + 1)};
        best = yield.rate() > best.rate() ? yield : best;
    }
    return best;
}

// What a round that begins with the model yields, by the last ones. Unlike model_yield() it knows what it is worth to
// stop behind an unsure token.
Yield Pace::usual_model_yield() const {
    Yield usual = model_yield(acceptance_.model().mean(), 1, most_);
    usual.fade(model_prior_rounds);
    usual.add(of_model_);
    usual.fade(1.0 / usual.rounds);
    usual.seconds += first_draft_seconds(missing_) - draft_.seconds(1);
    return usual;
}

double Pace::first_draft_seconds(std::size_t missing) const {
    const double one = draft_.seconds(1);
    return one + catching_up_share * std::max(0.0, catching_up_seconds(missing) - one);
}

// What the draft needs to decode so many tokens.
double Pace::catching_up_seconds(std::size_t missing) const {
    const std::size_t rest = missing % draft_batch_;
    const std::size_t whole_batches = missing / draft_batch_;
    return static_cast<double>(whole_batches) * draft_.seconds(draft_batch_) + (rest > 0 ? draft_.seconds(rest) : 0.0);
}

// Tokens per second of the last rounds.
double Pace::earned() const {
    const double plain = 1.0 / target_.seconds(1);
    return std::max(plain, (of_all_.tokens + prior_rounds) / (of_all_.seconds + prior_rounds / plain));
}

// What time is worth: as much as the last rounds earned, but no more than the next ones may well earn. A copy that has
// ended says nothing of what comes behind it.
double Pace::rate() const {
    const double usual = missing_at_first_ > 0 ? usual_model_yield().rate() : 0.0;
    return std::max(1.0 / target_.seconds(1), std::min(earned(), usual));
}

// How many rounds may draft before plain decoding is measured again: so many that it costs a small share of the time,
// which is nearly nothing where the gain is small, and where it matters most.
std::size_t Pace::plain_interval() const {
    if (of_all_.rounds < few_rounds) {
        return largest_interval;
    }
    const double lost = target_.seconds(1) - 1.0 / earned();
    const double rounds = lost * of_all_.rounds / (measuring_share * of_all_.seconds);
    return std::clamp(static_cast<std::size_t>(rounds), least_interval, largest_interval);
}

std::size_t Pace::before() const {
    return !tokens_.empty() && tokens_.back().source == Source::model ? tokens_.back().bucket : Acceptance::start;
}

Pace::Decision Pace::decide(const std::vector<Expectation> & lookup) {
    const std::size_t done = tokens_.size();
    if (done >= most_) {
        return {};
    }
    if (!lookup.empty()) {
        idle_ = Idle::not_worth_it;
    }
    const double rho = rate();
    const double stop = target_.seconds(done + 1);
    Decision best;
    double best_net = best_prefix(rho).second;
    double model = model_run(survival_, -stop, done, missing_, before(), rho);
    if (done == 0 && missing_ > 0) {
        const Yield usual = usual_model_yield();
        model = std::max(model, usual.tokens - 1.0 - rho * (usual.seconds - stop));
    }
    if (model > best_net && !(exploring_ && exploring_cost(done + 1) > credit_)) {
        best = {Move::model, 1};
        best_net = model;
    }
    double survival = survival_;
    double gain = 0.0;
    for (std::size_t k = 1; k <= std::min({lookup.size(), most_ - done, window_}); ++k) {
        survival *= acceptance_.of(lookup[k - 1]);
        gain += survival;
        const double alone = gain - rho * (target_.seconds(done + k + 1) - stop);
        const double continued =
            gain + model_run(survival, -stop, done + k, missing_ > 0 ? missing_ + k : 0, Acceptance::start, rho);
        if (std::max(alone, continued) > best_net) {
            best = {Move::lookup, k};
            best_net = std::max(alone, continued);
        }
    }
    if (best.move != Move::stop) {
        return best;
    }
    const std::size_t pad = best_net > 0.0 ? 0 : padding();
    return pad > 0 ? Decision{Move::pad, pad} : Decision{};
}

// The best net gain, in tokens, of drafting one token or more with the model, behind `drafted` tokens that survive
// verification with probability `survival`; minus infinity if it cannot. The target's batch is counted from
// `time_so_far` on.
double Pace::model_run(double survival, double time_so_far, std::size_t drafted, std::size_t missing,
                       std::size_t before, double rho) const {
    double best = -std::numeric_limits<double>::infinity();
    if (missing == 0) {
        return best;
    }
    double gain = 0.0;
    double draft_time = 0.0;
    for (std::size_t k = 1; drafted + k <= most_; ++k) {
        const double usual = exploring_ ? acceptance_.model().optimistic() : acceptance_.model().mean();
        survival *= k == 1 && !exploring_ ? acceptance_.next(before) : usual;
        gain += survival;
        draft_time += k == 1 ? first_draft_seconds(missing) : draft_.seconds(1);
        const double net = gain - rho * (draft_time + target_.seconds(drafted + k + 1) + time_so_far);
        best = std::max(best, net);
    }
    return best;
}

// A batch of a few more tokens can be cheaper: kernels work on several rows at a time.
std::size_t Pace::padding() const {
    const std::size_t size = tokens_.size() + 1;
    std::size_t best = 0;
    double least = padding_gain * target_.seconds(size);
    if (tokens_.empty() || target_.count(size) == 0) {
        return 0;
    }
    for (std::size_t more = 1; more <= std::min(most_padding, most_ - tokens_.size()); ++more) {
        if (target_.count(size + more) > 0 && target_.seconds(size + more) < least) {
            best = more;
            least = target_.seconds(size + more);
        }
    }
    return best;
}

// How many of the drafted tokens are best verified, and how many tokens that is worth more than to verify all of them.
std::pair<std::size_t, double> Pace::best_prefix(double rho) const {
    const std::size_t done = tokens_.size();
    std::pair<std::size_t, double> best{done, 0.0};
    if (!may_drop_) {
        return best;
    }
    double left_out = 0.0;
    double survival = survival_;
    for (std::size_t k = done; k > 0; --k) {
        left_out += survival;
        survival /= acceptance_.of(tokens_[k - 1]);
        const double net = rho * (target_.seconds(done + 1) - target_.seconds(k)) - left_out;
        if (net > best.second) {
            best = {k - 1, net};
        }
    }
    return best;
}

std::size_t Pace::drop() {
    const std::size_t kept = best_prefix(rate()).first;
    if (kept < tokens_.size()) {
        counters_.num_dropped += tokens_.size() - kept;
        dropped_ = tokens_[kept];
        tokens_.resize(kept);
    }
    return kept;
}

void Pace::judge_dropped(bool right) { acceptance_.observe(dropped_, right); }

void Pace::drafted(const Expectation & token) {
    with_model_ = with_model_ || (tokens_.empty() && token.source == Source::model);
    uses_model_ = uses_model_ || token.source == Source::model;
    tokens_.push_back(token);
    survival_ *= acceptance_.of(token);
    if (missing_ > 0) {
        missing_ = token.source == Source::model ? 1 : missing_ + 1;
    }
}

// What was to be expected of this round, not what luck made of it: a few lucky rounds must not make the next ones look
// poor.
double Pace::expected_tokens() const {
    double expected = 1.0;
    double survival = 1.0;
    for (const Expectation & token : tokens_) {
        survival *= acceptance_.of(token);
        expected += survival;
    }
    return expected;
}

void Pace::end_round(std::size_t num_accepted, double verify_seconds, double draft_seconds) {
    const double expected = expected_tokens();
    const double usual_seconds = target_.empty() ? verify_seconds : target_.seconds(tokens_.size() + 1);
    counters_.predicted_tokens += expected;
    counters_.predicted_seconds += draft_seconds + usual_seconds;
    of_all_.fade(fading);
    of_all_.add({1.0, expected, verify_seconds + draft_seconds});
    if (with_model_) {
        since_model_ = 1;
        const double late = catching_up_seconds(missing_at_first_) - draft_.seconds(missing_at_first_ > 1 ? 2 : 1);
        of_model_.fade(model_fading);
        // What was expected is less noisy, what came cannot be wrong.
        const double came = 1.0 + static_cast<double>(num_accepted);
        const double tokens = expected + realised_share * (came - expected);
        of_model_.add({1.0, tokens, usual_seconds + std::max(0.0, draft_seconds - std::max(0.0, late))});
    }

    target_.observe(tokens_.size() + 1, verify_seconds);
    since_plain_ = tokens_.empty() ? 0 : since_plain_ + 1;
    for (std::size_t i = 0; i < std::min(num_accepted + 1, tokens_.size()); ++i) {
        acceptance_.observe(tokens_[i], i < num_accepted);
    }
    adapt_window(num_accepted);
    if (tokens_.empty()) {
        counters_.idle_rounds[static_cast<std::size_t>(idle_)] += 1;
    }
    counters_.plain_seconds = target_.seconds(1);
    const double in_plain = (verify_seconds + draft_seconds) / counters_.plain_seconds;
    const double lost = exploring_ && uses_model_ ? in_plain - static_cast<double>(num_accepted + 1) : 0.0;
    credit_ = std::min(credit_ + exploring_share * in_plain - lost, largest_credit);
    counters_.exploring_seconds += std::max(0.0, lost) * counters_.plain_seconds;
}

void Pace::decoded(std::size_t count, double seconds) {
    target_.observe(count, seconds);
    if (count == 1) {
        since_plain_ = 0;
    }
}

// Long copies are expensive to try, and what is known of other texts says little of how long this one repeats: begin
// with short ones, and double them while they hold (as TCP's slow start does).
void Pace::adapt_window(std::size_t num_accepted) {
    std::size_t first = 0;
    while (first < tokens_.size() && tokens_[first].source != Source::lookup) {
        ++first;
    }
    std::size_t end = first;
    while (end < tokens_.size() && tokens_[end].source == Source::lookup) {
        ++end;
    }
    if (end == first || num_accepted < first) {
        return;
    }
    const std::size_t right = std::min(num_accepted, end) - first;
    if (num_accepted >= end) {
        window_ = std::max(window_, 2 * right + 1);
    } else {
        window_ = std::clamp<std::size_t>(2 * right, first_window, window_);
    }
}

void Pace::judge_unused(const std::vector<Expectation> & lookup, std::size_t num_right, std::size_t num_judged) {
    for (std::size_t i = 0; i < std::min({num_right + 1, num_judged, lookup.size()}); ++i) {
        acceptance_.observe(lookup[i], i < num_right);
    }
}

}  // namespace specllama
