// T(n): what decoding a batch of n tokens costs, learned from the decodes themselves. Knows neither llama.cpp nor
// Python.
#include "pacing/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace specllama {

namespace {

// The assumed cost of each further token, as a share of T(1). On most machines most models cost more.
constexpr double usual_growth = 0.1;
constexpr double level_rate = 0.2;   // all sizes change by this share of the error that shape_rate leaves
constexpr double shape_rate = 0.12;  // a size changes by this share of its error, per decode since it was last seen
constexpr std::size_t longest_since = 3;          // decodes since a size was last seen: more count as this many
constexpr std::size_t forgetting_interval = 256;  // decodes between two calls of forget_worst_guess()
constexpr double doubtful = 0.2;                  // a size this far above its neighbours, in log seconds, is doubted
constexpr double surprising = 1.5;                // a size is surprising at this multiple of its expected time
// The largest error that is learned from one batch, in log seconds. A batch that had to wait (for a swapped page, say)
// must not change the curve much.
constexpr double largest_step = 0.6;

// Whether a time can be used: a clock can stand still, and a file can hold anything.
bool usable(double seconds) { return seconds > 0.0 && std::isfinite(seconds); }

}  // namespace

void CostModel::observe(std::size_t n, double seconds) {
    if (n == 0 || !usable(seconds) || !learns_) {
        return;
    }
    asked_.fill(0.0);
    num_observed_ += 1;
    if (num_observed_ % forgetting_interval == 0) {
        forget_worst_guess();
    }
    const Observation observation{n, std::log(seconds)};
    if (!takes_level(observation)) {
        learn(observation);
    }
}

void CostModel::distrust_level() {
    num_since_ = sizes_.empty() ? settled_ : 0;
    distrusted_ = log_level_;
}

// Keeps an observation to find the level, while the level is not known. Returns whether it was kept. Once the level is
// known, learn() gets the observations that were kept.
bool CostModel::takes_level(const Observation & observation) {
    const bool is_between = !sizes_.empty() && observation.n >= sizes_.begin()->first &&
                            observation.n <= sizes_.rbegin()->first;  // outside, log_shape() would be a guess
    if (num_since_ >= settled_ || !is_between) {
        return false;
    }
    since_[num_since_] = observation;
    num_since_ += 1;
    std::array<double, settled_> levels{};
    std::transform(since_.begin(), since_.begin() + num_since_, levels.begin(),
                   [&](const Observation & one) { return one.log_seconds - log_shape(one.n); });
    if (num_since_ < settled_) {
        log_level_ = std::min(distrusted_, *std::min_element(levels.begin(), levels.begin() + num_since_));
    } else {
        log_level_ = believed(levels, settled_);
        for (const Observation & one : since_) {
            learn(one);
        }
    }
    return true;
}

double CostModel::believed(std::array<double, settled_> values, std::size_t count) {
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(count);
    std::fill(end, values.end(), std::numeric_limits<double>::infinity());
    std::sort(values.begin(), values.end());
    if (*std::prev(end) - values.front() < std::log(surprising)) {
        return std::accumulate(values.begin(), end, 0.0) / static_cast<double>(count);
    }
    return values[count / settled_];
}

void CostModel::learn(const Observation & observation) {
    const double seen = observation.log_seconds - log_level_;
    const double most = sizes_.empty() ? seen : log_shape(observation.n) + std::log(surprising);
    Size & size = sizes_[observation.n];
    const auto since = static_cast<double>(std::min(num_observed_ - size.seen, longest_since));
    size.seen = num_observed_;
    size.count += 1;
    if (size.count > settled_) {
        const double error = std::clamp(seen - size.log_shape, -largest_step, largest_step);
        // A size that was not seen for a while may have changed more than the sizes that were seen since. So more of
        // the error is put down to this size alone.
        const double of_shape = 1.0 - std::pow(1.0 - shape_rate, since);
        size.log_shape += of_shape * error;
        log_level_ += level_rate * (1.0 - of_shape) * error;
        return;
    }
    size.first[size.count - 1] = seen;
    // On a GPU the first batch of each size is slow, so a surprising time counts only when it is seen again.
    size.log_shape = size.count == 1 ? std::min(seen, most) : believed(size.first, size.count);
    if (size.count > 1) {
        doubt_others(observation.n);
    }
}

// Corrects the sizes that were seen once, now that the size `known` was seen again. Such a size costs no more than a
// larger size that is known, and no more than as many smaller batches as it takes to decode its tokens.
void CostModel::doubt_others(std::size_t known) {
    const double one = sizes_[known].log_shape;
    for (auto & [n, size] : sizes_) {
        if (size.count == 1 && !size.restored) {
            const double batches = std::max(1.0, static_cast<double>(n) / static_cast<double>(known));
            size.log_shape = std::min(size.log_shape, one + std::log(surprising * batches));
        }
    }
}

// Forgets one size that was seen only a few times: the one that lies highest above the next smaller size and the
// cheapest larger one. If its first batch was held up by something else, it would look too expensive to be ever tried
// again.
void CostModel::forget_worst_guess() {
    std::size_t worst = 0;
    double most = doubtful;
    double above = std::numeric_limits<double>::infinity();  // the least time of the larger sizes
    for (auto it = sizes_.rbegin(); it != sizes_.rend() && std::next(it) != sizes_.rend(); ++it) {
        const double below = std::next(it)->second.log_shape;
        const double excess = it->second.log_shape - std::max(below, above);
        if (it->second.count < settled_ && excess > most) {
            worst = it->first;
            most = excess;
        }
        above = std::min(above, it->second.log_shape);
    }
    sizes_.erase(worst);
}

void CostModel::restore(const std::map<std::size_t, double> & seconds) {
    sizes_.clear();
    asked_.fill(0.0);
    for (const auto & [n, value] : seconds) {
        if (n > 0 && usable(value)) {
            sizes_[n] = {std::log(value), 1, true, 0, {std::log(value)}};
        }
    }
    log_level_ = 0.0;
    distrust_level();
}

CostModel CostModel::shared_by(std::size_t texts) const {
    CostModel result = *this;
    result.texts_ = texts;
    result.learns_ = false;
    result.asked_.fill(0.0);
    return result;
}

CostModel CostModel::among(std::size_t others, std::size_t texts) const {
    CostModel result = shared_by(texts);
    result.others_ = others;
    return result;
}

double CostModel::seconds(std::size_t n) const {
    if (sizes_.empty()) {
        return 0.0;
    }
    if (n < asked_.size() && asked_[n] > 0.0) {
        return asked_[n];
    }
    const auto texts = static_cast<double>(texts_);
    const double each = others_ > 0 ? whole(texts_) / texts + added(n) : whole(texts_ * n) / texts;
    if (n < asked_.size()) {
        asked_[n] = each;
    }
    return each;
}

// The seconds that the tokens of a text after its first one add to a batch with the other texts' tokens. The times of
// two sizes were measured at different moments and differ by chance, too, so some tokens would look free. Therefore
// each further token costs at least (T(size) - T(1)) / (size - 1), the average cost of a further token of that batch.
double CostModel::added(std::size_t n) const {
    const double size = whole(others_ + n);
    const double average = std::max(0.0, size - whole(1)) / static_cast<double>(others_ + n - 1);
    return std::max(size - whole(others_ + 1), average * static_cast<double>(n - 1));
}

double CostModel::whole(std::size_t n) const { return std::exp(log_shape(n) + log_level_); }

double CostModel::log_shape(std::size_t n) const {
    const auto above = sizes_.lower_bound(n);
    if (above != sizes_.end() && above->first == n) {
        return above->second.log_shape;
    }
    if (above == sizes_.end()) {
        const auto & [m, size] = *std::prev(above);
        const double first = std::exp(sizes_.begin()->second.log_shape);  // T(1), or T of the smallest known size
        return std::log(std::exp(size.log_shape) + usual_growth * first * static_cast<double>(n - m));
    }
    if (above == sizes_.begin()) {
        const double more = usual_growth * static_cast<double>(above->first - 1);
        return above->second.log_shape + std::log((1.0 + usual_growth * static_cast<double>(n - 1)) / (1.0 + more));
    }
    const auto below = std::prev(above);
    const double t = static_cast<double>(n - below->first) / static_cast<double>(above->first - below->first);
    return std::log((1.0 - t) * std::exp(below->second.log_shape) + t * std::exp(above->second.log_shape));
}

std::map<std::size_t, double> CostModel::known() const {
    std::map<std::size_t, double> result;
    for (const auto & [n, size] : sizes_) {
        result[n] = std::exp(size.log_shape + log_level_);
    }
    return result;
}

std::size_t CostModel::count(std::size_t n) const {
    const auto found = sizes_.find(size_with(n));
    const std::size_t waiting = num_since_ < settled_ ? num_since_ : 0;
    return (found == sizes_.end() ? 0 : found->second.count) +
           static_cast<std::size_t>(std::count_if(since_.begin(), since_.begin() + waiting,
                                                  [&](const auto & one) { return one.n == size_with(n); }));
}

bool CostModel::is_sure(std::size_t n) const {
    return std::any_of(sizes_.begin(), sizes_.upper_bound(size_with(n)),
                       [](const auto & each) { return each.second.restored || each.second.count > 1; });
}

}  // namespace specllama
