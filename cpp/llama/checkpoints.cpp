// Copies of a memory's state at earlier positions.
#include "llama/checkpoints.hpp"

#include <algorithm>
#include <utility>

namespace specllama {

Checkpoint & Checkpoints::add(std::size_t position, std::size_t most) {
    if (used_.size() >= most) {
        spare_.push_back(std::move(used_.front()));
        used_.erase(used_.begin());
    }
    if (spare_.empty()) {
        spare_.emplace_back();
    }
    used_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    used_.back().position = position;
    return used_.back();
}

const Checkpoint * Checkpoints::latest(std::size_t position) const {
    for (auto checkpoint = used_.rbegin(); checkpoint != used_.rend(); ++checkpoint) {
        if (checkpoint->position <= position) {
            return &*checkpoint;
        }
    }
    return nullptr;
}

std::vector<std::size_t> Checkpoints::positions() const {
    std::vector<std::size_t> all(used_.size());
    std::transform(used_.begin(), used_.end(), all.begin(), [](const Checkpoint & copy) { return copy.position; });
    return all;
}

void Checkpoints::drop_behind(std::size_t position) {
    while (!used_.empty() && used_.back().position > position) {
        spare_.push_back(std::move(used_.back()));
        used_.pop_back();
    }
}

}  // namespace specllama
