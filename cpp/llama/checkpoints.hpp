// Copies of a memory's state at earlier positions. Knows neither llama.cpp nor what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specllama {

struct Checkpoint {
    std::size_t position = 0;  // how many tokens the memory held
    std::vector<std::uint8_t> state;
};

class Checkpoints {
public:
    // Makes room for the state at `position`, after all others. If there are `most` already the oldest gives way.
    // The buffers of those that are gone are used again.
    Checkpoint & add(std::size_t position, std::size_t most);

    // The last one at or before `position`; null if there is none.
    const Checkpoint * latest(std::size_t position) const;

    // Forgets all after `position`.
    void drop_behind(std::size_t position);

private:
    std::vector<Checkpoint> used_;  // by ascending position
    std::vector<Checkpoint> spare_;
};

}  // namespace specllama
