// Kernels over the state of a recurrent layer: of a delta net (Gated DeltaNet, arXiv 2412.06464, equation 10) or of a
// scan (Mamba-2, arXiv 2405.21060, section 7).
//
// A head's state is a matrix [rows][length]. A token changes each row by itself:
//
//     row = decay * row + c * key,  out = scale * (row . query)
//
// where c is value * rate for a scan, and (value - (decay * row) . key) * rate for a delta net. The result for a token
// does not depend on how many tokens come with it.
#pragma once

#include <cstdint>

namespace specllama::kernels {

// What a token does to the state of a head.
struct StateStep {
    const float * decays;  // [length] if the state's `has_decays`, else one number
    const float * key;     // [length]
    const float * query;   // [length]
    const float * values;  // [rows]
    float rate;
    float * out;   // [rows]
    float * kept;  // [rows][length]: gets the state after this token; null: it is not kept
};

struct HeadState {
    const float * from;  // [rows][length]: the state before the first token
    float * to;          // [rows][length]: gets the state after the last token; may be the same memory
    int64_t rows;
    int64_t length;  // a multiple of kFloatLanes (float_kernels.hpp)
    float scale;
    bool is_delta;
    bool has_decays;
};

// The most tokens of a call: their keys and queries stay in the first-level cache.
constexpr int kMostSteps = 16;

// Applies the tokens, 1 to kMostSteps, one after the other.
using UpdateState = void (*)(const HeadState & state, const StateStep * steps, int count);

}  // namespace specllama::kernels
