// The target's hidden states of a part of the text.
#include "drafters/kept_states.hpp"

#include <algorithm>

namespace specllama {

namespace {

constexpr std::size_t most_kept = 256;  // states that are left once there are more than twice as many

}  // namespace

void KeptStates::forget(std::size_t unchanged) {
    forget_from(std::min(end(), unchanged));
    if (end() - first_ > 2 * most_kept) {
        forget_before(end() - most_kept);
    }
}

void KeptStates::forget_from(std::size_t place) {
    first_ = std::min(first_, place);
    states_.resize(std::min(states_.size(), (place - first_) * size_));
}

void KeptStates::forget_before(std::size_t place) {
    if (place > first_) {
        const std::size_t count = std::min(place, end()) - first_;
        states_.erase(states_.begin(), states_.begin() + static_cast<std::ptrdiff_t>(count * size_));
        first_ = place;
    }
}

void KeptStates::append(std::size_t place, const float * states, std::size_t count) {
    forget_from(place);
    if (place > end()) {
        states_.clear();
        first_ = place;
    }
    states_.insert(states_.end(), states, states + count * size_);
}

}  // namespace specllama
