// Single passes over the logits of a whole vocabulary.
#include "math/logits_scan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace specllama {

// This function stands first, so that the loops below inline and vectorise it.
float fast_exp(float x) {
    // 2^k * e^r with r in [-log(2)/2, log(2)/2]; the polynomial is the one of Cephes' expf.
    const float not_below = x < -87.0F ? -87.0F : x;  // not std::max: its references stop vectorisation
    const float clamped = not_below > 88.0F ? 88.0F : not_below;
    // Adding 1.5 * 2^23 rounds to the nearest integer in the low bits of the mantissa.
    const float shifted = clamped * 1.44269504F + 12582912.0F;
    int32_t bits = 0;
    std::memcpy(&bits, &shifted, sizeof bits);
    const float k = shifted - 12582912.0F;
    const float r = (clamped - k * 0.693359375F) + k * 2.12194440e-4F;
    float poly = 1.9875691500e-4F;
    poly = poly * r + 1.3981999507e-3F;
    poly = poly * r + 8.3334519073e-3F;
    poly = poly * r + 4.1665795894e-2F;
    poly = poly * r + 1.6666665459e-1F;
    poly = poly * r + 5.0000001201e-1F;
    poly = poly * r * r + r + 1.0F;
    const int32_t exponent = static_cast<int32_t>((static_cast<uint32_t>(bits) - 0x4B400000U + 127U) << 23);
    float power = 0.0F;
    std::memcpy(&power, &exponent, sizeof power);
    return x < -87.0F ? 0.0F : poly * power;
}

namespace {

constexpr std::size_t kBlock = 32;

// Whether any of `count` values is above the threshold. The loop looks at all values, so that it has no branches.
inline bool any_above(const float * values, std::size_t count, float threshold) {
    int above = 0;
    for (std::size_t i = 0; i < count; ++i) {
        above |= static_cast<int>(values[i] > threshold);
    }
    return above != 0;
}

// Calls visit(i) for every i with values[i] > threshold(), skipping whole blocks.
template <typename Threshold, typename Visit>
void for_each_above(const float * values, std::size_t n, Threshold threshold, Visit visit) {
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        const std::size_t count = std::min(kBlock, n - begin);
        const bool any = count == kBlock ? any_above(values + begin, kBlock, threshold())
                                         : any_above(values + begin, count, threshold());
        if (!any) {
            continue;
        }
        for (std::size_t i = begin; i < begin + count; ++i) {
            if (values[i] > threshold()) {
                visit(i);
            }
        }
    }
}

// Collects the k best of a stream of candidates, in O(1) amortised for each, in a buffer that is cut back to k when
// full.
class BestK {
public:
    BestK(std::size_t k, std::vector<Candidate> & out) : k_(k), capacity_(2 * k + 64), out_(out) {
        out_.clear();
        out_.reserve(capacity_);
    }

    // Only values above the threshold can still belong to the best k.
    float threshold() const { return threshold_; }

    void add(int32_t id, float logit) {
        out_.push_back({id, logit});
        if (out_.size() == capacity_) {
            cut();
            threshold_ = out_.back().logit;
        }
    }

    void finish() {
        if (out_.size() > k_) {
            cut();
        }
        std::sort(out_.begin(), out_.end(), ranks_before);
    }

private:
    // Leaves the k best candidates, the worst of them last. Ties at the threshold are won by the lower id, which came
    // earlier.
    void cut() {
        const auto kth = out_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
        std::nth_element(out_.begin(), kth, out_.end(), ranks_before);
        out_.resize(k_);
    }

    std::size_t k_;
    std::size_t capacity_;
    std::vector<Candidate> & out_;
    float threshold_ = -std::numeric_limits<float>::infinity();
};

constexpr std::size_t kChunk = 256;

// e^x to within 6e-4 of its value, for x in [-87, 0]; the smallest number for a smaller x.
inline float rough_exp(float x) {
    const float clamped = x < -87.0F ? -87.0F : x;
    const float shifted = clamped * 1.44269504F + 12582912.0F;  // rounds, as in fast_exp
    int32_t bits = 0;
    std::memcpy(&bits, &shifted, sizeof bits);
    const float r = clamped * 1.44269504F - (shifted - 12582912.0F);  // in [-1/2, 1/2]
    const float of_rest = ((0.0555041F * r + 0.2402265F) * r + 0.6931472F) * r + 1.0F;
    const auto exponent = static_cast<int32_t>((static_cast<uint32_t>(bits) - 0x4B400000U + 127U) << 23);
    float power = 0.0F;
    std::memcpy(&power, &exponent, sizeof power);
    return of_rest * power;
}

// Eight independent sums of numbers of this type: one running sum would wait for itself at every addition.
template <typename Number>
inline Number sum_of(const float * values, std::size_t count) {
    std::array<Number, 8> lanes{};
    std::size_t i = 0;
    for (; i + lanes.size() <= count; i += lanes.size()) {
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            lanes[lane] += values[i + lane];
        }
    }
    for (; i < count; ++i) {
        lanes[0] += values[i];
    }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Exponentials of a chunk: the inner loop is free of branches and calls.
inline void exp_chunk(const float * logits, std::size_t count, float shift, float scale, float * out) {
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = fast_exp(scale * (logits[i] - shift));
    }
}

}  // namespace

float largest(const float * logits, std::size_t n) {
    float best = -std::numeric_limits<float>::infinity();
    for_each_above(logits, n, [&best] { return best; }, [&](std::size_t i) { best = logits[i]; });
    return best;
}

int32_t argmax(const float * logits, std::size_t n) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t best_id = -1;
    for_each_above(
        logits, n, [&best] { return best; },
        [&](std::size_t i) {
            best = logits[i];
            best_id = static_cast<int32_t>(i);
        });
    return best_id;
}

void select_top_k(const float * logits, std::size_t n, std::size_t k, std::vector<Candidate> & out) {
    BestK best(std::min(k, n), out);
    for_each_above(
        logits, n, [&best] { return best.threshold(); },
        [&](std::size_t i) { best.add(static_cast<int32_t>(i), logits[i]); });
    best.finish();
}

void select_at_least(const float * logits, std::size_t n, float threshold, std::vector<Candidate> & out) {
    out.clear();
    const float below = std::nextafter(threshold, -std::numeric_limits<float>::infinity());
    for_each_above(
        logits, n, [below] { return below; },
        [&](std::size_t i) { out.push_back({static_cast<int32_t>(i), logits[i]}); });
    std::sort(out.begin(), out.end(), ranks_before);
}

double sum_exp(const float * logits, std::size_t n, float shift, float scale) {
    std::array<float, kChunk> values{};
    double total = 0.0;
    for (std::size_t begin = 0; begin < n; begin += kChunk) {
        const std::size_t count = std::min(kChunk, n - begin);
        exp_chunk(logits + begin, count, shift, scale, values.data());
        total += sum_of<double>(values.data(), count);
    }
    return total;
}

double rough_sum_exp(const float * logits, std::size_t n, float shift) {
    std::array<float, kChunk> values{};
    double total = 0.0;
    for (std::size_t begin = 0; begin < n; begin += kChunk) {
        const std::size_t count = std::min(kChunk, n - begin);
        for (std::size_t i = 0; i < count; ++i) {
            values[i] = rough_exp(logits[begin + i] - shift);
        }
        total += sum_of<float>(values.data(), count);
    }
    return total;
}

double exp_all(const float * logits, std::size_t n, float shift, float scale, std::vector<double> & out) {
    out.resize(n);
    std::array<float, kChunk> values{};
    double total = 0.0;
    for (std::size_t begin = 0; begin < n; begin += kChunk) {
        const std::size_t count = std::min(kChunk, n - begin);
        exp_chunk(logits + begin, count, shift, scale, values.data());
        std::copy(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                  out.begin() + static_cast<std::ptrdiff_t>(begin));
        total += sum_of<double>(values.data(), count);
    }
    return total;
}

double entropy(const float * logits, std::size_t n, float largest, double sum) {
    // H = log Z - sum_x e^(l_x - max) (l_x - max) / Z
    std::array<float, kChunk> values{};
    double weighted = 0.0;
    for (std::size_t begin = 0; begin < n; begin += kChunk) {
        const std::size_t count = std::min(kChunk, n - begin);
        exp_chunk(logits + begin, count, largest, 1.0F, values.data());
        for (std::size_t i = 0; i < count; ++i) {
            if (values[i] > 0.0F) {  // 0 * -inf counts as 0
                weighted += static_cast<double>(values[i]) * (logits[begin + i] - largest);
            }
        }
    }
    return std::log(sum) - weighted / sum;
}

double standard_deviation(const float * logits, std::size_t n) {
    constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
    std::array<float, kChunk> values{};
    double count = 0.0;
    const auto sum_over = [&](auto term) {
        double total = 0.0;
        count = 0.0;
        for (std::size_t begin = 0; begin < n; begin += kChunk) {
            const std::size_t size = std::min(kChunk, n - begin);
            int finite = 0;
            for (std::size_t i = 0; i < size; ++i) {
                const float logit = logits[begin + i];
                const bool is_finite = logit > minus_infinity;
                values[i] = is_finite ? term(logit) : 0.0F;
                finite += static_cast<int>(is_finite);
            }
            total += sum_of<double>(values.data(), size);
            count += finite;
        }
        return count > 0.0 ? total / count : 0.0;
    };
    const auto mean = static_cast<float>(sum_over([](float logit) { return logit; }));
    return std::sqrt(sum_over([mean](float logit) { return (logit - mean) * (logit - mean); }));
}

void select_typical(const float * logits, std::size_t n, float log_sum, float entropy, std::size_t k,
                    std::vector<Candidate> & out) {
    BestK best(std::min(k, n), out);
    for (std::size_t i = 0; i < n; ++i) {
        const float nearness = -std::fabs(log_sum - logits[i] - entropy);
        if (nearness > best.threshold()) {
            best.add(static_cast<int32_t>(i), nearness);
        }
    }
    best.finish();
    for (Candidate & candidate : out) {
        candidate.logit = logits[candidate.id];
    }
}

}  // namespace specllama
