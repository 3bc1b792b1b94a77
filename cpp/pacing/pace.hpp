// How much to draft next, and from where, from measured costs and acceptance. Knows neither llama.cpp nor Python.
//
// A round earns tokens and costs time. Let rho be the rate, in tokens per second, that is earned anyway. To get the
// most tokens per second in the long run, draft another token as long as it is expected to earn more than rho times its
// time (the renewal-reward argument: Dinkelbach 1967 for the ratio). rho is at least the rate of plain decoding, so a
// draft that does not pay is not made; and rho is at most what the next rounds may earn.
//
// Decisions are made before a token is drawn, from costs, earlier outcomes and the tokens drafted so far. So the
// decisions cannot change which tokens are sampled.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "pacing/acceptance_rates.hpp"
#include "pacing/cost_model.hpp"
#include "pacing/pace_constants.hpp"

// The pace's counters: its predictions, and the time lost by trying drafts that might not pay.
#define SPECLLAMA_PACE_COUNTERS(X)                                                                 \
    X(double, plain_seconds, "Seconds of decoding one token plainly, as last measured.")           \
    X(double, exploring_seconds, "Seconds lost in rounds that drafted although it might not pay.") \
    X(double, predicted_tokens, "Tokens that all rounds were expected to emit.")                   \
    X(double, predicted_seconds, "Seconds that all rounds were expected to take.")                 \
    X(std::size_t, num_draft_prompts_skipped, "How many drafts did not decode the prompt, because it would not pay.")

namespace specllama {

// Why a round drafted nothing.
enum class Idle { measuring, no_match, not_worth_it };
constexpr std::size_t num_idle = 3;
constexpr std::array<const char *, num_idle> idle_names{"measuring", "no_match", "not_worth_it"};

struct PaceCounters {
#define SPECLLAMA_COUNTER(type, name, summary) type name = 0;
    SPECLLAMA_PACE_COUNTERS(SPECLLAMA_COUNTER)
#undef SPECLLAMA_COUNTER
    std::array<std::size_t, num_idle> idle_rounds{};  // rounds that drafted nothing, by Idle
};

// The tokens that rounds are expected to emit, and the time that the rounds take.
struct Yield {
    double rounds = 0.0;
    double tokens = 0.0;
    double seconds = 0.0;

    double rate() const { return seconds > 0.0 ? tokens / seconds : 0.0; }

    // Older rounds count for less.
    void fade(double factor) {
        rounds *= factor;
        tokens *= factor;
        seconds *= factor;
    }
    void add(const Yield & other) {
        rounds += other.rounds;
        tokens += other.tokens;
        seconds += other.seconds;
    }
};

class Pace {
public:
    // What to do next. stop: nothing more is drafted. draw: the drawer (a drafter that decodes) drafts one token. take:
    // the first `count` tokens of an offer are drafted.
    enum class Move { stop, draw, take };
    struct Decision {
        Move move = Move::stop;
        std::size_t count = 0;
        std::size_t offer = 0;  // the number of the offer
    };
    // The tokens that could be drafted without a decode: for each offer, the Expectation of each of its tokens.
    using Offers = std::vector<std::vector<Expectation>>;

    // priors: of all drafters, by Source.
    explicit Pace(const std::vector<DrafterPriors> & priors, const PaceConstants & constants = {})
        : constants_(constants), rates_(priors, constants), window_(static_cast<std::size_t>(constants.first_window)) {}

    void begin_generation();
    // The generation has ended after num_tokens tokens. max_tokens: the most tokens that it might have had.
    void end_generation(std::size_t num_tokens, std::size_t max_tokens);

    // Adds a drawer: a drafter that draws its tokens, which costs decodes of at most n_batch tokens. Each decode gives
    // `block` tokens. Drawers are numbered from 0, in the order of these calls. If there are several, each round uses
    // the one that promises most.
    void add_drawer(Source source, std::size_t n_batch, std::size_t block = 1) {
        drawers_.push_back({source, n_batch, block, {}, {}, 0});
    }
    // The number of the drawer that this round uses.
    std::size_t drawer() const { return drawer_; }

    // Sets the costs of batches that several texts share. The drafts of one text hold up all texts. So the text pays
    // for all the time that its tokens add, and this time is worth the tokens that all texts together would earn in it.
    //   texts: how many texts share a batch, with this one.
    //   others: how many tokens the other texts bring to the batch.
    //   target: the costs of the target's batches.
    //   num_drawing: how many texts share the draft's batches, with this one. While a text draws alone, the other
    //   texts wait.
    //   drafts: by drawer, the costs of the draft's batches. A drawer without an entry keeps its own costs.
    void share(std::size_t texts, std::size_t others, const CostModel & target, std::size_t num_drawing,
               const std::vector<const CostModel *> & drafts) {
        texts_ = texts;
        target_ = target.among(others, texts);
        for (std::size_t i = 0; i < std::min(drawers_.size(), drafts.size()); ++i) {
            drawers_[i].costs = drafts[i]->shared_by(num_drawing);
        }
    }

    // Decides for each drawer whether decoding its `missing` tokens pays: whether its drafts, of at most `most` tokens,
    // are likely to save more time than decoding them takes, in a text of at most max_tokens, and even if a better
    // drawer drafts, too. The answers are written to `pay`. Entries of `pay` that are false stay false.
    void weigh_prompts(const std::vector<std::size_t> & missing, std::size_t most, std::size_t max_tokens,
                       std::vector<bool> & pay);

    // To be called when decoding a drawer's prompt does not pay. Returns whether the drawer is to be measured
    // nevertheless, because a drawer that is not used would never be measured again. If so, its known speed is not
    // trusted any more.
    bool probes(std::size_t drawer);

    // most: the most tokens that may be drafted. missing: by drawer, the tokens that it has to decode before it can
    // draw (1 if it is in step); 0 if it cannot draw in this round.
    void begin_round(std::size_t most, const std::vector<std::size_t> & missing);

    // The most tokens that an offer needs. Finding more tokens would be useless work, because no more are taken.
    std::size_t reach() const { return std::max<std::size_t>(window_, 16); }

    // Decides what to do next in this round. `offers`: the tokens that could be drafted next without a decode.
    Decision decide(const Offers & offers);

    // Expectation::before of the drawer's next token: the bucket of the token before it.
    std::size_t before() const;

    // Says that a token was drafted. After a drawn token the drawer has 1 token to decode; after a token of another
    // drafter it has one more than before.
    void drafted(const Expectation & token);

    // Ends a round: the target's batch took verify_seconds, and the first num_accepted drafts were accepted.
    void end_round(std::size_t num_accepted, double verify_seconds, double draft_seconds);

    // Learns from a round that was not paced: the target decoded `count` tokens in so many seconds.
    void decoded(std::size_t count, double seconds);

    // Learns from an offer that was not taken. The text shows whether its first num_judged tokens are right; the first
    // num_right of them are.
    void judge_unused(const std::vector<Expectation> & offer, std::size_t num_right, std::size_t num_judged);

    CostModel & target() { return target_; }
    CostModel & draft(std::size_t drawer) { return drawers_.at(drawer).costs; }
    std::size_t num_drawers() const { return drawers_.size(); }
    // The counters of this generation.
    const PaceCounters & counters() const { return counters_; }

private:
    // A drafter that draws its tokens by decodes, as the pace knows it: see add_drawer().
    struct Drawer {
        Source source;
        std::size_t n_batch;
        std::size_t block;
        CostModel costs;
        // The fading sum of the rounds that began with a token of this drawer, without the time of catching up.
        Yield yield;
        std::size_t spared;  // how many prompts the drawer has not decoded since it was last used or measured
    };

    // The drawer of this round.
    const Drawer & current() const { return drawers_[drawer_]; }
    Drawer & current() { return drawers_[drawer_]; }
    const DrafterRates & drawn() const { return rates_.of(current().source); }
    bool is_drawn(const Expectation & token) const { return !drawers_.empty() && token.source == current().source; }
    std::size_t first_bucket() const { return drawers_.empty() ? 0 : drawn().start(); }
    void choose_drawer(const std::vector<std::size_t> & missing);
    void spare(std::size_t drawer);
    double rate() const;
    double earned() const;
    std::size_t plain_interval() const;
    // The value of the first tokens of an offer.
    struct Part {
        double net;       // the tokens that the part gains, less the tokens that its time is worth
        double survival;  // the probability that the part, and all tokens drafted before it, are accepted
    };

    std::vector<Part> parts_of(const std::vector<Expectation> & offer, double rho) const;
    Decision best_take(const Offers & offers, double rho, double best_net) const;
    double drawn_run(double survival, double time_so_far, std::size_t drafted, std::size_t missing, std::size_t before,
                     double rho) const;
    double expected_left() const;
    double first_draft_seconds(std::size_t missing) const;
    double catching_up_seconds(std::size_t missing) const;
    double one_draft_seconds() const { return current().costs.seconds(current().block); }
    double further_draft_seconds(std::size_t k) const;
    Yield drawn_yield(double acceptance, std::size_t missing, std::size_t most) const;
    Yield usual_drawn_yield() const { return usual_drawn_yield(drawn().any().mean()); }
    Yield usual_drawn_yield(double acceptance) const;
    bool is_measured() const;
    bool drawing_pays();
    double exploring_cost(std::size_t k) const;
    double expected_tokens() const;
    void adapt_window(std::size_t num_accepted);

    PaceConstants constants_;
    CostModel target_;
    std::vector<Drawer> drawers_;
    AcceptanceRates rates_;
    std::size_t texts_ = 1;

    // The state of this round.
    std::size_t drawer_ = 0;
    std::size_t most_ = 0;
    std::size_t missing_ = 0;
    std::size_t missing_at_first_ = 0;
    bool exploring_ = false;       // the drawer may draft although this may not pay
    bool measures_ = false;        // the drawer draws one token, to measure the cost
    std::size_t num_drawn_ = 0;    // how many tokens the drawer has drawn
    Idle idle_ = Idle::measuring;  // the reason, if this round drafts nothing
    double survival_ = 1.0;        // the probability that all tokens drafted so far are accepted
    std::vector<Expectation> tokens_;

    // The state of this text, and fading sums over the texts before it.
    std::size_t num_emitted_ = 0;
    std::size_t max_tokens_ = std::numeric_limits<std::size_t>::max();
    double answer_tokens_ = 0.0;
    double num_answers_ = 0.0;  // answers that ended by themselves

    // Fading sums over all rounds.
    Yield of_all_;
    double credit_ = 0.0;  // the time that may still be lost by drafts that may not pay, in plain decodes
    PaceCounters counters_;
    std::size_t since_plain_ = 0;  // rounds since plain decoding was measured
    std::size_t window_;           // the most tokens that one decision takes from an offer
};

}  // namespace specllama
