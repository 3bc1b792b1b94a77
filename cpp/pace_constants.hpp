// What the pace assumes, in one place: units, and why. Knows neither llama.cpp nor Python.
#pragma once

#include <array>
#include <utility>

namespace specllama {

struct PaceConstants {
    // How time is valued.
    double remembered_rounds = 10.0;
    double prior_rounds = 8.0;
    double drawn_prior_rounds = 3.0;
    double remembered_drawn_rounds = 14.0;
    double realised_share = 0.8;
    double catching_up_share = 0.15;
    // A draft that may not pay.
    double exploring_share = 0.01;
    double first_credit = 1.0;
    double largest_credit = 3.0;
    double forgetting_rounds = 100.0;
    double hope = 0.5;
    double probing_interval = 8.0;
    double usual_answer = 128.0;
    // Measuring plain decoding.
    double first_plain_rounds = 2.0;
    double measuring_share = 0.006;
    double least_interval = 8.0;
    double largest_interval = 100.0;
    double few_rounds = 4.0;
    // How much at once.
    double first_window = 3.0;
    double continuing_share = 1.0;
    double most_drawn = 16.0;
    double most_padding = 3.0;
    double padding_gain = 0.03;
    // Acceptance.
    double prior_weight = 6.0;
    double remembered_outcomes = 25.0;
    double kept_of_text = 0.3;
    double kept_of_drawn = 0.1;
    double prior_step = 0.1;
    double back_step = 0.02;
    double shape_step = 0.04;
    double level_step = 0.12;
    double largest_level = 3.0;
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
    SPECLLAMA_CONSTANT(most_padding),
    SPECLLAMA_CONSTANT(padding_gain),
    SPECLLAMA_CONSTANT(prior_weight),
    SPECLLAMA_CONSTANT(remembered_outcomes),
    SPECLLAMA_CONSTANT(kept_of_text),
    SPECLLAMA_CONSTANT(kept_of_drawn),
    SPECLLAMA_CONSTANT(prior_step),
    SPECLLAMA_CONSTANT(back_step),
    SPECLLAMA_CONSTANT(shape_step),
    SPECLLAMA_CONSTANT(level_step),
    SPECLLAMA_CONSTANT(largest_level),
};
#undef SPECLLAMA_CONSTANT
static_assert(sizeof(PaceConstants) == all_pace_constants.size() * sizeof(double), "each constant has a name here");

}  // namespace specllama
