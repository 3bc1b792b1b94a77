// The kernels of float_kernels.hpp, over 16 numbers at once. Like panel_product.hpp, this file is included by one .cpp
// for each instruction set. The template parameter F says how that set holds the 16 numbers. Every F gives the same
// bits.
#pragma once

#include <type_traits>

#include "kernels/float_kernels.hpp"
#include "kernels/quantized_type.hpp"
#include "kernels/recurrent_lanes.hpp"

namespace specllama::kernels {

namespace {

constexpr float kNothing = -__builtin_inff();

template <class F, CacheType type>
inline typename F::Floats lanes_of(const uint8_t * row, int64_t at) {
    if constexpr (type == CacheType::half) {
        return F::load_halves(row + 2 * at);
    } else if constexpr (type == CacheType::single) {
        return F::load(reinterpret_cast<const float *>(row) + at);
    } else {
        const uint8_t * block = row + at / kBlockValues * block_bytes(type);
        const int64_t place = at % kBlockValues;
        if constexpr (type == CacheType::q8) {
            return F::multiply(F::spread_half(block), F::load_bytes(block + 2 + place));
        } else {
            constexpr const int8_t (&values)[16] = type == CacheType::q4 ? kQ4Values : kIq4Values;
            return F::multiply(F::spread_half(block), F::load_nibbles(block + 2, place != 0, values));
        }
    }
}

template <class F, CacheType type, int rows, int columns>
inline void multiply_block(const uint8_t * row, int64_t stride, const float * const * x, int64_t length,
                           float * const * out, int64_t first_row) {
    typename F::Floats sum[columns][rows];
    SPECLLAMA_UNROLL
    for (int c = 0; c < columns; ++c) {
        SPECLLAMA_UNROLL
        for (int r = 0; r < rows; ++r) {
            sum[c][r] = F::spread(0.0F);
        }
    }
    for (int64_t i = 0; i < length; i += kFloatLanes) {
        typename F::Floats weights[rows];
        SPECLLAMA_UNROLL
        for (int r = 0; r < rows; ++r) {
            weights[r] = lanes_of<F, type>(row + r * stride, i);
        }
        SPECLLAMA_UNROLL
        for (int c = 0; c < columns; ++c) {
            const typename F::Floats numbers = F::load(x[c] + i);
            SPECLLAMA_UNROLL
            for (int r = 0; r < rows; ++r) {
                sum[c][r] = F::add_product(weights[r], numbers, sum[c][r]);
            }
        }
    }
    SPECLLAMA_UNROLL
    for (int c = 0; c < columns; ++c) {
        if constexpr (rows == F::kRows) {
            F::store_totals(sum[c], out[c] + first_row);
        } else {
            out[c][first_row] = F::total(sum[c][0]);
        }
    }
}

// Calls compute(n, c) for groups of n columns (an integral constant) from c on. The groups are as few as F allows, and
// of nearly one size: each group reads the rows again, and a group of one column has too few sums to keep the processor
// busy.
template <class F, int most = F::kColumns, class Compute>
inline void for_groups(int columns, int first, int groups, const Compute & compute) {
    for (; groups > 0 && (columns - first + groups - 1) / groups == most; first += most, --groups) {
        compute(std::integral_constant<int, most>(), first);
    }
    if constexpr (most > 1) {
        for_groups<F, most - 1>(columns, first, groups, compute);
    }
}

template <class F, class Compute>
inline void for_groups(int columns, const Compute & compute) {
    for_groups<F>(columns, 0, (columns + F::kColumns - 1) / F::kColumns, compute);
}

template <class F, CacheType type, int rows>
inline void multiply_some(const uint8_t * row, int64_t stride, const float * const * x, int columns, int64_t length,
                          float * const * out, int64_t first_row) {
    for_groups<F>(columns, [&](auto count, int c) {
        multiply_block<F, type, rows, count()>(row, stride, x + c, length, out + c, first_row);
    });
}

// Multiplies the rows in groups, and calls done(r, n) after each group: n rows from r on.
template <class F, CacheType type, class Done>
inline void multiply_each(const CacheRows & cache, int64_t num_rows, const float * const * x, int columns,
                          int64_t length, float * const * out, const Done & done) {
    int64_t r = 0;
    for (; r + F::kRows <= num_rows; r += F::kRows) {
        multiply_some<F, type, F::kRows>(cache.data + r * cache.stride, cache.stride, x, columns, length, out, r);
        done(r, F::kRows);
    }
    for (; r < num_rows; ++r) {
        multiply_some<F, type, 1>(cache.data + r * cache.stride, cache.stride, x, columns, length, out, r);
        done(r, 1);
    }
}

template <class F, CacheType type>
void multiply_rows(const CacheRows & cache, int64_t num_rows, const float * const * x, int columns, int64_t length,
                   float * const * out) {
    multiply_each<F, type>(cache, num_rows, x, columns, length, out, [](int64_t, int) {});
}

// Prefetches memory that is needed soon, into the second-level cache: the first-level cache can ask for too few lines
// at once to keep the memory busy. An address without memory does no harm.
inline void fetch([[maybe_unused]] const uint8_t * at, [[maybe_unused]] int64_t bytes) {
#if defined(__GNUC__) || defined(__clang__)
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(at + i, 0, 2);
    }
    __asm__ volatile("");  // GCC leaves out calls of functions that do nothing but prefetch
#endif
}

// e^x for x <= 0, computed as 2^n * e^r with |r| <= ln(2) / 2. The error is at most 2 units in the last place.
template <class F>
inline typename F::Floats exp_of(typename F::Floats x) {
    const typename F::Floats least = F::spread(-87.0F);  // below it e^x is no normal number, and counts as 0
    const typename F::Floats bounded = F::larger(x, least);
    const typename F::Floats n = F::nearest(F::multiply(bounded, F::spread(1.44269504F)));
    typename F::Floats r = F::add_product(n, F::spread(-0.693359375F), bounded);
    r = F::add_product(n, F::spread(2.12194440e-4F), r);
    typename F::Floats sum = F::spread(1.9875691500e-4F);
    sum = F::add_product(sum, r, F::spread(1.3981999507e-3F));
    sum = F::add_product(sum, r, F::spread(8.3334519073e-3F));
    sum = F::add_product(sum, r, F::spread(4.1665795894e-2F));
    sum = F::add_product(sum, r, F::spread(1.6666665459e-1F));
    sum = F::add_product(sum, r, F::spread(5.0000001201e-1F));
    sum = F::add_product(sum, F::multiply(r, r), F::add(r, F::spread(1.0F)));
    return F::zero_where_below(x, least, F::times_power_of_two(sum, n));
}

template <class F>
inline float exp_of(float x) {
    return F::first(exp_of<F>(F::spread(x)));
}

// cap * tanh(x / cap). The formula here has two powers of e, one of which is 1, so that no exponent is above 0.
template <class F>
inline typename F::Floats capped(typename F::Floats x, float cap) {
    const typename F::Floats zero = F::spread(0.0F);
    const typename F::Floats twice = F::multiply(x, F::spread(2.0F / cap));
    const typename F::Floats opposite = F::multiply(twice, F::spread(-1.0F));
    const typename F::Floats below = exp_of<F>(F::multiply(F::larger(opposite, zero), F::spread(-1.0F)));
    const typename F::Floats above = exp_of<F>(F::multiply(F::larger(twice, zero), F::spread(-1.0F)));
    const typename F::Floats difference = F::add_product(above, F::spread(-1.0F), below);
    return F::multiply(F::spread(cap), F::divide(difference, F::add(below, above)));
}

template <class F>
inline void scale_by(float * values, int64_t length, float factor) {
    const typename F::Floats factors = F::spread(factor);
    for (int64_t i = 0; i < length; i += kFloatLanes) {
        F::store(values + i, F::multiply(F::load(values + i), factors));
    }
}

// Whether a query sees any of the cells.
template <class F>
inline bool sees(const uint8_t * mask, int64_t cells) {
    typename F::Floats most = F::spread(kNothing);
    for (int64_t i = 0; i < cells; i += kFloatLanes) {
        most = F::larger(F::load_halves(mask + 2 * i), most);
    }
    return F::largest(most) > kNothing;
}

// Turns the scores of some cells into weights, and scales the sums over earlier cells to match.
template <class F>
inline void weigh(float * scores, int64_t first, int64_t cells, const Queries & queries, int query, Partial & partial) {
    const uint8_t * mask = queries.masks[query] + 2 * first;
    typename F::Floats most = F::spread(kNothing);
    for (int64_t i = 0; i < cells; i += kFloatLanes) {
        typename F::Floats score = F::multiply(F::load(scores + i), F::spread(queries.scale));
        if (queries.cap != 0.0F) {
            score = capped<F>(score, queries.cap);
        }
        const typename F::Floats masked =
            F::add_product(F::load_halves(mask + 2 * i), F::spread(queries.slopes[query]), score);
        F::store(scores + i, masked);
        most = F::larger(masked, most);
    }
    const float largest = F::largest(most);
    if (largest > partial.largest) {
        const float factor = exp_of<F>(partial.largest - largest);
        partial.sum *= factor;
        scale_by<F>(partial.values(), queries.value_length, factor);
        partial.largest = largest;
    }
    typename F::Floats sum = F::spread(0.0F);
    const typename F::Floats base = F::spread(-partial.largest);
    for (int64_t i = 0; i < cells; i += kFloatLanes) {
        const typename F::Floats weight = exp_of<F>(F::add(F::load(scores + i), base));
        F::store(scores + i, weight);
        sum = F::add(sum, weight);
    }
    partial.sum += F::total(sum);
}

// Adds weights[c][i] * rows[i] to sums[c], for the part of each row that begins at `at`.
//
// ahead: the rows that are needed next; the same part of them is prefetched meanwhile. If its data is null, no row is.
template <class F, CacheType type, int columns, int parts>
inline void add_block(const CacheRows & rows, int64_t cells, const float * weights, float * const * sums, int64_t at,
                      const CacheRows & ahead) {
    typename F::Floats sum[columns][parts];
    for (int c = 0; c < columns; ++c) {
        for (int p = 0; p < parts; ++p) {
            sum[c][p] = F::load(sums[c] + at + p * kFloatLanes);
        }
    }
    for (int64_t i = 0; i < cells; ++i) {
        if (ahead.data != nullptr) {
            fetch(ahead.data + i * ahead.stride + cache_bytes(type, at), cache_bytes(type, parts * kFloatLanes));
        }
        typename F::Floats values[parts];
        for (int p = 0; p < parts; ++p) {
            values[p] = lanes_of<F, type>(rows.data + i * rows.stride, at + p * kFloatLanes);
        }
        for (int c = 0; c < columns; ++c) {
            const typename F::Floats weight = F::spread(weights[c * kTileCells + i]);
            for (int p = 0; p < parts; ++p) {
                sum[c][p] = F::add_product(weight, values[p], sum[c][p]);
            }
        }
    }
    for (int c = 0; c < columns; ++c) {
        for (int p = 0; p < parts; ++p) {
            F::store(sums[c] + at + p * kFloatLanes, sum[c][p]);
        }
    }
}

template <class F, CacheType type, int columns>
inline void add_columns(const CacheRows & rows, int64_t cells, const float * weights, float * const * sums,
                        int64_t length, const CacheRows & ahead) {
    int64_t at = 0;
    for (; at + F::kRows * kFloatLanes <= length; at += F::kRows * kFloatLanes) {
        add_block<F, type, columns, F::kRows>(rows, cells, weights, sums, at, ahead);
    }
    for (; at < length; at += kFloatLanes) {
        add_block<F, type, columns, 1>(rows, cells, weights, sums, at, ahead);
    }
}

template <class F, CacheType type>
inline void add_weighted(const CacheRows & rows, int64_t cells, const float * weights, float * const * sums,
                         int columns, int64_t length, const CacheRows & ahead) {
    for_groups<F>(columns, [&](auto count, int c) {
        add_columns<F, type, count()>(rows, cells, weights + c * kTileCells, sums + c, length,
                                      c == 0 ? ahead : CacheRows{nullptr, 0});
    });
}

// Finds the queries that see a cell of the tile. Writes their indices to `which`, and returns how many there are.
template <class F>
inline int seeing(const Queries & queries, int64_t cell, int64_t cells, int (&which)[kMostQueries]) {
    int count = 0;
    for (int q = 0; q < queries.count; ++q) {
        if (sees<F>(queries.masks[q] + 2 * cell, cells)) {
            which[count++] = q;
        }
    }
    return count;
}

template <class F, CacheType type>
inline void attend_tile(const Queries & queries, int64_t cell, int64_t cells, int64_t ahead,
                        Partial * const * partials) {
    int which[kMostQueries];
    const int count = seeing<F>(queries, cell, cells, which);
    if (count == 0) {
        return;
    }
    float scores[kMostQueries * kTileCells];
    const float * vectors[kMostQueries];
    float * rows[kMostQueries];
    float * sums[kMostQueries];
    for (int i = 0; i < count; ++i) {
        vectors[i] = queries.vectors[which[i]];
        rows[i] = scores + i * kTileCells;
        sums[i] = partials[which[i]]->values();
    }
    const CacheRows keys = {queries.keys.data + cell * queries.keys.stride, queries.keys.stride};
    const CacheRows values = {queries.values.data + cell * queries.values.stride, queries.values.stride};
    const int64_t value_bytes = cache_bytes(type, queries.value_length);
    multiply_each<F, type>(keys, cells, vectors, count, queries.key_length, rows, [&](int64_t row, int num_rows) {
        for (int64_t r = row; ahead > 0 && r < row + num_rows; ++r) {
            fetch(values.data + (r + ahead) * values.stride, value_bytes);
        }
    });
    for (int i = 0; i < count; ++i) {
        weigh<F>(rows[i], cell, cells, queries, which[i], *partials[which[i]]);
    }
    add_weighted<F, type>(values, cells, scores, sums, count, queries.value_length,
                          {ahead > 0 ? keys.data + ahead * keys.stride : nullptr, keys.stride});
}

template <class F, CacheType type>
void attend(const Queries & queries, int64_t first, int64_t last, int64_t fetched, uint8_t * out) {
    Partial * partials[kMostQueries];
    for (int q = 0; q < queries.count; ++q) {
        partials[q] = reinterpret_cast<Partial *>(out + q * Partial::bytes(queries.value_length));
        partials[q]->largest = kNothing;
        partials[q]->sum = 0.0F;
        for (int64_t i = 0; i < queries.value_length; i += kFloatLanes) {
            F::store(partials[q]->values() + i, F::spread(0.0F));
        }
    }
    // The rows of one head lie apart, so the processor's own prefetching does not find them. Without `ahead` the
    // processor waits half of the time. To fetch a chunk ahead is better than a tile ahead, but the last chunk can only
    // fetch its own tiles.
    const int64_t ahead = fetched == 0 ? 0 : last < fetched ? kChunkCells : kTileCells;
    for (int64_t cell = first; cell < last; cell += kTileCells) {
        attend_tile<F, type>(queries, cell, last - cell < kTileCells ? last - cell : kTileCells, ahead, partials);
    }
}

template <class F>
void merge(Partial & into, const Partial & from, int64_t length) {
    if (!(from.largest > kNothing)) {
        return;
    }
    const bool grows = from.largest > into.largest;
    const float kept = grows ? exp_of<F>(into.largest - from.largest) : 1.0F;
    const float added = grows ? 1.0F : exp_of<F>(from.largest - into.largest);
    const typename F::Floats factor = F::spread(added);
    into.largest = grows ? from.largest : into.largest;
    into.sum *= kept;
    const float sum = from.sum * added;
    into.sum += sum;
    scale_by<F>(into.values(), length, kept);
    for (int64_t i = 0; i < length; i += kFloatLanes) {
        F::store(into.values() + i, F::add_product(F::load(from.values() + i), factor, F::load(into.values() + i)));
    }
}

template <class F>
constexpr FloatKernels kFloatKernels = {
    {multiply_rows<F, CacheType::half>, multiply_rows<F, CacheType::single>, multiply_rows<F, CacheType::q8>,
     multiply_rows<F, CacheType::q4>, multiply_rows<F, CacheType::iq4>},
    {attend<F, CacheType::half>, attend<F, CacheType::single>, attend<F, CacheType::q8>, attend<F, CacheType::q4>,
     attend<F, CacheType::iq4>},
    merge<F>,
    update_state<F>};

}  // namespace

}  // namespace specllama::kernels
