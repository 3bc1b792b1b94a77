// Sequence breakers: token sequences at which DRY stops looking for a repetition.
#include "math/sequence_breakers.hpp"

#include <algorithm>

namespace specllama {

std::size_t SequenceBreakers::num_behind(const std::vector<int32_t> & backwards) const {
    for (std::size_t i = 0; i < backwards.size(); ++i) {
        const auto found = rests_.find(backwards[i]);
        if (found == rests_.end()) {
            continue;
        }
        const auto next = backwards.rend() - static_cast<std::ptrdiff_t>(i);  // the token after this one
        std::size_t nearest = backwards.size();
        for (const auto & rest : *found->second) {
            if (rest.size() <= i && std::equal(rest.begin(), rest.end(), next)) {
                nearest = std::min(nearest, i - rest.size());
            }
        }
        if (nearest < backwards.size()) {
            return nearest;
        }
    }
    return backwards.size();
}

bool SequenceBreakers::breaks_alone(int32_t token) const {
    const auto found = rests_.find(token);
    return found != rests_.end() && std::any_of(found->second->begin(), found->second->end(),
                                                [](const std::vector<int32_t> & rest) { return rest.empty(); });
}

}  // namespace specllama
