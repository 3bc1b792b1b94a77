// The target's hidden states of a part of the text that a head has not read yet, or may have to read again.
#pragma once

#include <cstddef>
#include <vector>

namespace specllama {

class KeptStates {
public:
    // size: floats of one state.
    explicit KeptStates(std::size_t size) : size_(size) {}

    // The states are those of the text's positions [first, end).
    std::size_t first() const { return first_; }
    std::size_t end() const { return first_ + states_.size() / size_; }
    const float * at(std::size_t place) const { return states_.data() + (place - first_) * size_; }

    // Forgets the states from position `unchanged` on, because the text changes there. If too many states are left,
    // forgets all but the last ones.
    void forget(std::size_t unchanged);
    // Adds the states of `count` tokens from position `place` on. If this leaves a gap, earlier states are dropped.
    void append(std::size_t place, const float * states, std::size_t count);

private:
    void forget_from(std::size_t place);
    void forget_before(std::size_t place);

    std::size_t size_;
    std::size_t first_ = 0;
    std::vector<float> states_;
};

}  // namespace specllama
