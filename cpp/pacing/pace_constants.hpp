// The constants of the pace, in one table. Knows neither llama.cpp nor Python.
//
// `scripts/replay.py --constants` prints how much the speedup changes if a constant is halved or doubled. For most
// constants the change is less than 0.4 %, which is noise.
#pragma once

// X(name, value, its unit, and why it has this value)
#define SPECLLAMA_PACE_CONSTANTS(X)                                                                                    \
    /* How time is valued. */                                                                                          \
    X(remembered_rounds, 10.0, "Rounds whose yield is what time is worth. Texts change their kind within some ten.")   \
    X(prior_rounds, 3.0,                                                                                               \
      "Rounds that are expected before others are known: of plain decoding, since a text begins carefully, and with "  \
      "a drawn token by its acceptance alone. With twice as many a useless draft costs a text over 2 %.")              \
    X(realised_share, 0.8,                                                                                             \
      "Share of what came in such rounds, beside what was expected: the one is noisy, the other can be wrong.")        \
    X(most_held_up, 2.0, "Times what its drafting was expected to take, that such a round is said to have taken.")     \
    X(catching_up_share, 0.15,                                                                                         \
      "Share of the draft's catching up that is charged to one round: the next ones profit, too.")                     \
    /* A draft that may not pay. */                                                                                    \
    X(exploring_share, 0.01, "Share of all time, for trying a draft that may not pay.")                                \
    X(first_credit, 1.0, "Plain decodes that a text may spend on that at once.")                                       \
    X(largest_credit, 3.0, "Plain decodes that it may save up, or owe.")                                               \
    X(dear_draft, 0.7, "Plain decodes. A draft that seems to cost more is measured again before that is believed.")    \
    X(forgetting_rounds, 100.0,                                                                                        \
      "Rounds without the drawer after which little is left of what was known of it: then it is tried again.")         \
    X(hope, 0.5, "Standard errors above the mean acceptance: without its prompt a draft is never found to be good.")   \
    X(probing_interval, 8.0,                                                                                           \
      "Prompts that the draft is spared, for one that begins with two of its tokens, to see how fast it is.")          \
    X(usual_answer, 128.0,                                                                                             \
      "Tokens of an answer, before others have ended: max_tokens is often far more than what comes.")                  \
    X(remembered_answers, 8.0, "Answers whose lengths say how long the next one will be.")                             \
    /* Measuring plain decoding. */                                                                                    \
    X(first_plain_rounds, 2.0, "Rounds that decode plainly first, where nothing is known: all is compared with them.") \
    X(measuring_share, 0.006, "Share of all time, for measuring plain decoding again: machines drift.")                \
    X(least_interval, 8.0, "Rounds between two that measure it.")                                                      \
    X(largest_interval, 100.0, "Rounds between two, at most: where plain decoding is far slower.")                     \
    /* How much at once. */                                                                                            \
    X(first_window, 3.0,                                                                                               \
      "Tokens that one decision takes from an offer at first; it doubles while all are right (as TCP's slow start "    \
      "does).")                                                                                                        \
    X(most_drawn, 16.0, "Tokens drawn in one round. Longer drafts are hardly ever all right.")                         \
    /* Acceptance. */                                                                                                  \
    X(prior_weight, 6.0, "Outcomes that the prior of an acceptance rate counts for.")                                  \
    X(remembered_outcomes, 25.0, "Outcomes of one class of tokens.")                                                   \
    X(kept_of_text, 0.3, "Share of what is particular to a text, for the next one.")                                   \
    X(prior_step, 0.1, "Share of what is learned from a text, for what is expected of the next ones.")                 \
    X(back_step, 0.02,                                                                                                 \
      "Share back to the first expectation for a text that shows nothing: a draft is not given up for good.")          \
    X(shape_step, 0.04,                                                                                                \
      "Log odds, times the surprise: how a class of tokens departs from the others, over many texts.")                 \
    X(level_step, 0.12, "Log odds, times the surprise: how all classes follow the text at hand, within some tokens.")

namespace specllama {

struct PaceConstants {
#define SPECLLAMA_FIELD(name, value, about) double name = value;
    SPECLLAMA_PACE_CONSTANTS(SPECLLAMA_FIELD)
#undef SPECLLAMA_FIELD
};

}  // namespace specllama
