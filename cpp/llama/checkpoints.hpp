// Copies of a memory's state at earlier positions. This file does not depend on llama.cpp: a state is only bytes.
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
    // Adds an entry for the state at `position`, which must be after all others; the caller fills it in. If there are
    // `most` entries already, the oldest is removed. Buffers of removed entries are used again.
    Checkpoint & add(std::size_t position, std::size_t most);

    // The last entry at or before `position`; null if there is none.
    const Checkpoint * latest(std::size_t position) const;

    // The positions of all entries.
    std::vector<std::size_t> positions() const;

    // Removes all entries after `position`.
    void drop_behind(std::size_t position);

private:
    std::vector<Checkpoint> used_;  // by ascending position
    std::vector<Checkpoint> spare_;
};

}  // namespace specllama
