// What the pace assumes, in one place. Knows neither llama.cpp nor Python.
//
// Each constant: its unit, why it has this value, and by how many percent the speedup changes if it is halved or
// doubled, with our kernels | with llama.cpp's. The speedup is the mean over two pairs of models, 55 texts and eleven
// curves of costs, with the draft's prompt; up to 0.4 is noise. scripts/replay.py --constants prints it anew. (These
// were taken with drawn_prior_rounds 6 and first_credit 0.75, and without the EPYC (Zen 3).)
#pragma once

#include <array>
#include <utility>

namespace specllama {

struct PaceConstants {
    // --- How time is valued.
    // Rounds whose yield is what time is worth. Texts change their kind within some ten. Halved 0 | +0.1, doubled +0.4
    // | +0.3.
    double remembered_rounds = 10.0;
    // Rounds of plain decoding, before there are others: a text begins carefully. Halved +0.4 | +0.2, doubled +0.2 |
    // -0.2.
    double prior_rounds = 8.0;
    // Rounds with a drawn token that go by the acceptance alone, before what such rounds brought is believed. Halved
    // -0.2 | -0.1, doubled +0.4 | +0.2, but then a useless draft costs a text over 2 %.
    double drawn_prior_rounds = 3.0;
    // Rounds that began with a drawn token. They are rarer than others, so more of them are remembered. Halved 0 |
    // +0.1, doubled +0.3 | +0.1.
    double remembered_drawn_rounds = 14.0;
    // Share of what came in such rounds, beside what was expected: the one is noisy, the other can be wrong. Halved
    // +0.2 | 0, doubled -0.5 | -0.5.
    double realised_share = 0.8;
    // Share of the draft's catching up that is charged to one round: the next ones profit, too. Halved -0.2 | -0.4,
    // doubled +0.4 | +0.3.
    double catching_up_share = 0.15;

    // --- A draft that may not pay.
    // Share of all time, for trying a draft that may not pay. Halved 0 | +0.1, doubled 0 | 0.
    double exploring_share = 0.01;
    // Plain decodes that a text may spend on that at once. Halved +0.1 | 0, doubled +0.1 | +0.1.
    double first_credit = 1.0;
    // Plain decodes that it may save up, or owe. Halved +0.1 | +0.1, doubled 0 | 0.
    double largest_credit = 3.0;
    // Rounds without the drawer after which little is left of what was known of it: then it is tried again. Halved
    // -0.1 | 0, doubled +0.2 | 0.
    double forgetting_rounds = 100.0;
    // Standard errors above the mean acceptance: without its prompt a draft is never found to be good. (Costs answers
    // cut at 160 tokens more than longer ones.) Halved +0.6 | +0.6, doubled -0.9 | -1.7.
    double hope = 0.5;
    // Prompts that the draft is spared, for one that begins with two of its tokens, to see how fast it is. Halved 0 |
    // -0.1, doubled 0 | 0.
    double probing_interval = 8.0;
    // Tokens of an answer, if max_tokens is more, which is often far more than what comes. (The replayed ones were cut
    // at 160.) Halved +1.4 | +1.5, doubled -0.3 | -0.4.
    double usual_answer = 128.0;

    // --- Measuring plain decoding.
    // Rounds that decode plainly first, where nothing is known: all is compared with them. Halved 0 | 0, doubled 0 |
    // 0.
    double first_plain_rounds = 2.0;
    // Share of all time, for measuring plain decoding again. Real machines drift, the replayed ones do not. Halved
    // +0.2 | +0.5, doubled -0.3 | -0.3.
    double measuring_share = 0.006;
    // Rounds between two that measure it. Halved +0.1 | 0, doubled +0.3 | +0.2.
    double least_interval = 8.0;
    // Rounds between two, at most: where plain decoding is far slower. Halved 0 | 0, doubled 0 | 0.
    double largest_interval = 100.0;
    // Rounds that are too few to say what drafting gains. Halved 0 | 0, doubled +0.3 | +0.3.
    double few_rounds = 4.0;

    // --- How much at once.
    // Tokens that one decision takes from an offer at first; it doubles while all are right (as TCP's slow start does).
    // Halved -0.1 | -0.4, doubled -0.1 | -0.1.
    double first_window = 3.0;
    // Share of what the next round will copy that is lost with a copy which is not all right. 0: long copies, more
    // often wrong. Halved 0 | -0.4, doubled 0 | +0.1.
    double continuing_share = 1.0;
    // Tokens drawn in one round. Longer drafts are hardly ever all right. Halved +0.1 | -0.1, doubled -0.1 | -0.1.
    double most_drawn = 16.0;
    // --- Acceptance.
    // Outcomes that the prior of an acceptance rate counts for. Halved -0.7 | -0.8, doubled +0.6 | +0.5.
    double prior_weight = 6.0;
    // Outcomes of one class of tokens. Halved +0.1 | +0.2, doubled +0.4 | +0.1.
    double remembered_outcomes = 25.0;
    // Share of what is particular to a text, for the next one. Halved 0 | 0, doubled -0.1 | -0.1.
    double kept_of_text = 0.3;
    // Share, the same of the acceptance of any drawn token: the next text can be of another kind. Halved 0 | +0.1,
    // doubled +0.3 | 0.
    double kept_of_drawn = 0.1;
    // Share of what a text has shown, into what is expected of the next ones. Halved -0.1 | 0, doubled -0.1 | -0.2.
    double prior_step = 0.1;
    // Share back to the first expectation for a text that shows nothing: a draft is not given up for good. Halved 0 |
    // 0, doubled 0 | 0.
    double back_step = 0.02;
    // Log odds, times the surprise: how a class of tokens departs from the others, over many texts. Halved 0 | 0,
    // doubled +0.2 | -0.1.
    double shape_step = 0.04;
    // Log odds, times the surprise: how all classes follow the text at hand, within some tokens. Halved +0.6 | +0.1,
    // doubled -0.3 | -0.1.
    double level_step = 0.12;
};

struct PaceConstant {
    const char * name;
    double PaceConstants::* value;
};

#define SPECLLAMA_CONSTANT(name) \
    PaceConstant { #name, &PaceConstants::name }
constexpr std::array all_pace_constants{
    SPECLLAMA_CONSTANT(remembered_rounds),
    SPECLLAMA_CONSTANT(prior_rounds),
    SPECLLAMA_CONSTANT(drawn_prior_rounds),
    SPECLLAMA_CONSTANT(remembered_drawn_rounds),
    SPECLLAMA_CONSTANT(realised_share),
    SPECLLAMA_CONSTANT(catching_up_share),
    SPECLLAMA_CONSTANT(exploring_share),
    SPECLLAMA_CONSTANT(first_credit),
    SPECLLAMA_CONSTANT(largest_credit),
    SPECLLAMA_CONSTANT(forgetting_rounds),
    SPECLLAMA_CONSTANT(hope),
    SPECLLAMA_CONSTANT(probing_interval),
    SPECLLAMA_CONSTANT(usual_answer),
    SPECLLAMA_CONSTANT(first_plain_rounds),
    SPECLLAMA_CONSTANT(measuring_share),
    SPECLLAMA_CONSTANT(least_interval),
    SPECLLAMA_CONSTANT(largest_interval),
    SPECLLAMA_CONSTANT(few_rounds),
    SPECLLAMA_CONSTANT(first_window),
    SPECLLAMA_CONSTANT(continuing_share),
    SPECLLAMA_CONSTANT(most_drawn),
    SPECLLAMA_CONSTANT(prior_weight),
    SPECLLAMA_CONSTANT(remembered_outcomes),
    SPECLLAMA_CONSTANT(kept_of_text),
    SPECLLAMA_CONSTANT(kept_of_drawn),
    SPECLLAMA_CONSTANT(prior_step),
    SPECLLAMA_CONSTANT(back_step),
    SPECLLAMA_CONSTANT(shape_step),
    SPECLLAMA_CONSTANT(level_step),
};
#undef SPECLLAMA_CONSTANT
static_assert(sizeof(PaceConstants) == all_pace_constants.size() * sizeof(double), "each constant has a name here");

}  // namespace specllama
