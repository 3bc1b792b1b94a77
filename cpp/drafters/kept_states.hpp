// The target's states of a part of the text that a head has not read yet, or may have to read again.
#pragma once

#include <cstddef>
#include <vector>

namespace specllama {

class KeptStates {
public:
    // size: floats of one state.
    explicit KeptStates(std::size_t size) : size_(size) {}

    // They are of the text's places [first, end).
    std::size_t first() const { return first_; }
    std::size_t end() const { return first_ + states_.size() / size_; }
    const float * at(std::size_t place) const { return states_.data() + (place - first_) * size_; }

    // The text goes on otherwise behind `unchanged` tokens. Of the others only the last ones stay.
    void forget(std::size_t unchanged);
    // Behind a hole those before it are of no use.
    void append(std::size_t place, const float * states, std::size_t count);

private:
    void forget_from(std::size_t place);
    void forget_before(std::size_t place);

    std::size_t size_;
    std::size_t first_ = 0;
    std::vector<float> states_;
};

}  // namespace specllama
