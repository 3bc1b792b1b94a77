// The constants of the pace, in one table. Knows neither llama.cpp nor Python.
//
// `scripts/replay.py --constants` prints how much the speedup changes if a constant is halved or doubled. For most
// constants the change is less than 0.4 %, which is noise.
#pragma once

// X(name, value, its unit, and why it has this value)
#define SPECLLAMA_PACE_CONSTANTS(X)                                                                                    \
    /* How time is valued. */                                                                                          \
    X(remembered_rounds, 10.0,                                                                                         \
      "Past rounds whose tokens a second say what time is worth. Texts change their kind within some ten.")            \
    X(prior_rounds, 3.0,                                                                                               \
      "Imagined rounds that count until real ones are known: plain ones, and ones with a drawn token that have "       \
      "their expected acceptance. With twice as many a useless draft costs a text over 2 %.")                          \
    X(realised_share, 0.8,                                                                                             \
      "Weight of the tokens that a draft's rounds gave, which are noisy. The expected ones, which can be wrong, "      \
      "have the rest of the weight.")                                                                                  \
    X(most_held_up, 2.0, "The most time that counts for the drafting of a round, in multiples of the expected time.")  \
    X(catching_up_share, 0.15,                                                                                         \
      "Share of the time in which a draft reads missed text that is charged to one round: later rounds profit, "       \
      "too.")                                                                                                          \
    /* A draft that may not pay. */                                                                                    \
    X(exploring_share, 0.01, "Share of all time, for trying a draft that may not pay.")                                \
    X(first_credit, 1.0, "The time of so many plain decodes a text may spend at once on trying a draft.")              \
    X(largest_credit, 3.0, "The time of so many plain decodes a text may save up for trying a draft, or owe.")         \
    X(dear_draft, 0.7,                                                                                                 \
      "In plain decodes. A higher cost of a draft counts once it is measured twice: its first batch may have "         \
      "been held up.")                                                                                                 \
    X(forgetting_rounds, 100.0,                                                                                        \
      "Rounds without a draft after which its measured acceptance has faded: then the draft is tried again.")          \
    X(hope, 0.5,                                                                                                       \
      "Standard errors added to the acceptance that decides whether a draft reads a prompt: unread, it never "         \
      "looks good.")                                                                                                   \
    X(probing_interval, 8.0,                                                                                           \
      "Of so many prompts that a draft does not read, it reads two tokens of one, to measure how fast it is.")         \
    X(usual_answer, 128.0,                                                                                             \
      "Tokens of an answer, before others have ended: max_tokens is often far more than what comes.")                  \
    X(remembered_answers, 8.0, "Answers whose lengths say how long the next one will be.")                             \
    /* Measuring plain decoding. */                                                                                    \
    X(first_plain_rounds, 2.0, "Rounds that decode plainly first, where nothing is known: all is compared with them.") \
    X(measuring_share, 0.006, "Share of all time, for measuring plain decoding again: machines drift.")                \
    X(least_interval, 8.0, "The fewest rounds between two that measure plain decoding.")                               \
    X(largest_interval, 100.0,                                                                                         \
      "The most rounds between two that measure plain decoding, where that is far slower than drafting.")              \
    /* How much at once. */                                                                                            \
    X(first_window, 3.0,                                                                                               \
      "Tokens that one decision takes from an offer at first; it doubles while all are right (as TCP's slow start "    \
      "does).")                                                                                                        \
    X(most_drawn, 16.0, "Tokens drawn in one round. Longer drafts are hardly ever all right.")                         \
    /* Acceptance. */                                                                                                  \
    X(prior_weight, 6.0, "Outcomes that the prior of an acceptance rate counts for.")                                  \
    X(remembered_outcomes, 25.0, "Past tokens of one class whose outcomes count.")                                     \
    X(kept_of_text, 0.3, "Share of the outcomes in a text that still count in the next text.")                         \
    X(prior_step, 0.1, "Share by which a text's acceptance moves what is expected of the next texts.")                 \
    X(back_step, 0.02,                                                                                                 \
      "Share by which the expectation moves back to its first value after a text without drafts: so no draft is "      \
      "given up for good.")                                                                                            \
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
