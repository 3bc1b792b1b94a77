// T(n): what decoding a batch of n tokens costs, learned from the decodes themselves. Knows neither llama.cpp nor
// Python.
#include "cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace specllama {

namespace {

constexpr double usual_growth = 0.1;  // of T(1), for each token more: optimistic for most models on most machines
constexpr double level_rate = 0.2;    // how fast all sizes follow what one of them shows
constexpr double shape_rate = 0.15;   // how fast one size departs from the others
constexpr double largest_step = 0.7;  // in log seconds: one outlier (a swapped page) must not turn the curve over
constexpr std::size_t settled = 3;    // a size seen less often than that follows its own mean

}  // namespace

void CostModel::observe(std::size_t n, double seconds) {
    if (n == 0 || !(seconds > 0.0)) {
        return;
    }
    const double log_seconds = std::log(seconds);
    if (!level_known_ && !sizes_.empty()) {
        log_level_ = log_seconds - log_shape(n);
    }
    level_known_ = true;
    Size & size = sizes_.emplace(n, Size{log_seconds - log_level_, 0}).first->second;
    const double error = std::clamp(log_seconds - log_level_ - size.log_shape, -largest_step, largest_step);
    size.count += 1;
    if (size.count <= settled) {
        size.log_shape += error / static_cast<double>(size.count);
    } else {
        size.log_shape += shape_rate * error;
        log_level_ += level_rate * error;
    }
}

void CostModel::restore(const std::map<std::size_t, double> & seconds) {
    for (const auto & [n, value] : seconds) {
        if (n > 0 && value > 0.0) {
            sizes_[n] = {std::log(value), 0};
        }
    }
    log_level_ = 0.0;
    level_known_ = false;
}

double CostModel::seconds(std::size_t n) const { return sizes_.empty() ? 0.0 : std::exp(log_shape(n) + log_level_); }

double CostModel::log_shape(std::size_t n) const {
    const auto above = sizes_.lower_bound(n);
    if (above != sizes_.end() && above->first == n) {
        return above->second.log_shape;
    }
    if (above == sizes_.end()) {
        const auto & [m, size] = *std::prev(above);
        const double first = std::exp(sizes_.begin()->second.log_shape);  // T(1), or as near to it as is known
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
    const auto found = sizes_.find(n);
    return found == sizes_.end() ? 0 : found->second.count;
}

}  // namespace specllama
