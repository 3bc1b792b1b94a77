// The window and the pool of lookahead decoding.
#include "pacing/lookahead_window.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace specllama {

namespace {

std::size_t between(const char * name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) {
        throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) + " of lookahead must be from " +
                                    std::to_string(least) + " to " + std::to_string(most));
    }
    return static_cast<std::size_t>(value);
}

}  // namespace

LookaheadWindow::LookaheadWindow(std::int64_t columns, std::int64_t n_gram, std::int64_t most_kept)
    : columns_(between("window", columns, 1, most_columns)),
      n_gram_(between("n_gram", n_gram, least_gram, most_gram)),
      most_kept_(between("guesses", most_kept, 1, most_of_token)) {}

void LookaheadWindow::begin(std::vector<std::vector<int32_t>> levels) {
    pool_.clear();
    levels_ = std::move(levels);
}

void LookaheadWindow::advance(const std::vector<int32_t> & said, std::size_t count) {
    const std::vector<int32_t> firsts = levels_.front();
    std::rotate(levels_.begin(), levels_.begin() + 1, levels_.end());
    levels_.back() = said;
    for (std::size_t i = 0; i < columns_; ++i) {
        std::vector<int32_t> rest(levels_.size());
        std::transform(levels_.begin(), levels_.end(), rest.begin(), [i](const auto & level) { return level[i]; });
        keep(firsts[i], std::move(rest));
    }
    // The target has given one new level. For each further token of the text, a copy of the first level takes the place
    // of the last one.
    for (; count > 1; --count) {
        std::rotate(levels_.begin(), levels_.begin() + 1, levels_.end());
        levels_.back() = levels_.front();
    }
}

void LookaheadWindow::keep(int32_t first, std::vector<int32_t> rest) {
    Kept & kept = pool_[first];
    if (std::find(kept.grams.begin(), kept.grams.end(), rest) != kept.grams.end()) {
        return;
    }
    if (kept.grams.size() < most_kept_) {
        kept.grams.push_back(std::move(rest));
    } else {
        kept.grams[kept.next] = std::move(rest);
    }
    kept.next = (kept.next + 1) % most_kept_;
}

const std::vector<int32_t> * LookaheadWindow::newest(int32_t first) const {
    const auto found = pool_.find(first);
    if (found == pool_.end()) {
        return nullptr;
    }
    const Kept & kept = found->second;
    return &kept.grams[(kept.next + most_kept_ - 1) % most_kept_];
}

std::vector<std::vector<int32_t>> LookaheadWindow::pool(int32_t first) const {
    const auto found = pool_.find(first);
    if (found == pool_.end()) {
        return {};
    }
    std::vector<std::vector<int32_t>> grams = found->second.grams;
    if (grams.size() == most_kept_) {
        std::rotate(grams.begin(), grams.begin() + static_cast<std::ptrdiff_t>(found->second.next), grams.end());
    }
    return grams;
}

}  // namespace specllama
