// The logits of a head that chooses among a part of the target's tokens (d2t): llama.cpp spreads them over as many
// places as the target has, filled with minus infinity before (FILL, SET_ROWS). ggml does either one number at a time.
#pragma once

#include "ggml_plugin/ggml_layout.hpp"

namespace specllama {

// Whether it fills columns of floats, one number a row.
bool is_fill_of_logits(const ggml::Tensor * op);
// Whether it spreads columns of floats over others.
bool is_spread_of_logits(const ggml::Tensor * op);

void fill_logits(const ggml::Tensor * op);
// What goes to a place that is not there is left out.
void spread_logits(const ggml::Tensor * op);

}  // namespace specllama
