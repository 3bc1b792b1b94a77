// The kernels of recurrent.hpp, over 16 numbers at once; included by float_lanes.hpp.
#pragma once

#include <cstdint>

#include "kernels/float_kernels.hpp"
#include "kernels/recurrent.hpp"

namespace specllama::kernels {

namespace {

template <class F, bool has_decays>
inline typename F::Floats decayed(const float * row, const float * decays, int64_t at) {
    return F::multiply(F::load(row + at), has_decays ? F::load(decays + at) : F::spread(*decays));
}

template <class F, int rows>
inline void store_all(const typename F::Floats (&sums)[rows], float * out) {
    if constexpr (rows == F::kRows) {
        F::store_totals(sums, out);
    } else {
        for (int r = 0; r < rows; ++r) {
            out[r] = F::total(sums[r]);
        }
    }
}

// Applies one token to `rows` rows, of which `from` and `to` are the first.
template <class F, bool is_delta, bool has_decays, int rows>
inline void step_rows(const float * from, float * to, int64_t length, float scale, const StateStep & step,
                      int64_t first) {
    using Floats = typename F::Floats;
    float change[rows];
    if constexpr (is_delta) {
        Floats sums[rows];
        SPECLLAMA_UNROLL
        for (int r = 0; r < rows; ++r) {
            sums[r] = F::spread(0.0F);
        }
        for (int64_t i = 0; i < length; i += kFloatLanes) {
            const Floats key = F::load(step.key + i);
            SPECLLAMA_UNROLL
            for (int r = 0; r < rows; ++r) {
                sums[r] = F::add_product(decayed<F, has_decays>(from + r * length, step.decays, i), key, sums[r]);
            }
        }
        store_all<F, rows>(sums, change);
        for (int r = 0; r < rows; ++r) {
            change[r] = (step.values[first + r] - change[r]) * step.rate;
        }
    } else {
        for (int r = 0; r < rows; ++r) {
            change[r] = step.values[first + r] * step.rate;
        }
    }
    float * kept = step.kept == nullptr ? nullptr : step.kept + first * length;
    // What is kept is rarely read again, and never soon: it goes past the caches where it can.
    const bool streams = reinterpret_cast<std::uintptr_t>(kept) % 32 == 0;
    Floats changes[rows];
    Floats sums[rows];
    SPECLLAMA_UNROLL
    for (int r = 0; r < rows; ++r) {
        changes[r] = F::spread(change[r]);
        sums[r] = F::spread(0.0F);
    }
    for (int64_t i = 0; i < length; i += kFloatLanes) {
        const Floats key = F::load(step.key + i);
        const Floats query = F::load(step.query + i);
        SPECLLAMA_UNROLL
        for (int r = 0; r < rows; ++r) {
            const int64_t at = r * length + i;
            const Floats state = F::add_product(key, changes[r], decayed<F, has_decays>(from + at - i, step.decays, i));
            F::store(to + at, state);
            if (kept != nullptr && streams) {
                F::stream(kept + at, state);
            } else if (kept != nullptr) {
                F::store(kept + at, state);
            }
            sums[r] = F::add_product(state, query, sums[r]);
        }
    }
    store_all<F, rows>(sums, step.out + first);
    for (int r = 0; r < rows; ++r) {
        step.out[first + r] *= scale;
    }
}

template <class F, bool is_delta, bool has_decays, int rows>
inline void update_rows(const HeadState & state, const StateStep * steps, int count, int64_t first) {
    const float * from = state.from + first * state.length;
    float * to = state.to + first * state.length;
    for (int i = 0; i < count; ++i) {
        step_rows<F, is_delta, has_decays, rows>(i == 0 ? from : to, to, state.length, state.scale, steps[i], first);
    }
}

template <class F, bool is_delta, bool has_decays>
inline void update_all(const HeadState & state, const StateStep * steps, int count) {
    int64_t first = 0;
    for (; first + F::kRows <= state.rows; first += F::kRows) {
        update_rows<F, is_delta, has_decays, F::kRows>(state, steps, count, first);
    }
    for (; first < state.rows; ++first) {
        update_rows<F, is_delta, has_decays, 1>(state, steps, count, first);
    }
}

template <class F>
void update_state(const HeadState & state, const StateStep * steps, int count) {
    if (!state.is_delta) {
        update_all<F, false, false>(state, steps, count);
    } else if (state.has_decays) {
        update_all<F, true, true>(state, steps, count);
    } else {
        update_all<F, true, false>(state, steps, count);
    }
    F::finish_streams();
}

}  // namespace

}  // namespace specllama::kernels
