// A constraint that gets the allowed tokens of a position as one mask of the whole vocabulary.
#include "math/mask_constraint.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace specllama {

namespace {

constexpr std::size_t bits = 32;
constexpr std::size_t most_places = 64;
constexpr std::size_t most_tested = 512;  // the most candidates to test at a place; for more, a mask is faster
constexpr std::size_t first_probes = 8;

bool allows(const std::vector<std::uint32_t> & mask, std::int32_t token) {
    const auto index = static_cast<std::size_t>(token);
    return token >= 0 && index / bits < mask.size() && ((mask[index / bits] >> (index % bits)) & 1U) != 0;
}

// The only token that the mask allows; -1 if it allows several, or none.
std::int32_t only_one(const std::vector<std::uint32_t> & mask) {
    std::int32_t only = -1;
    for (std::size_t word = 0; word < mask.size(); ++word) {
        if (mask[word] == 0) {
            continue;
        }
        if (only >= 0 || (mask[word] & (mask[word] - 1)) != 0) {
            return -1;
        }
        std::size_t bit = 0;
        while (((mask[word] >> bit) & 1U) == 0) {
            ++bit;
        }
        only = static_cast<std::int32_t>(word * bits + bit);
    }
    return only;
}

}  // namespace

MaskConstraint::MaskConstraint(std::vector<std::int32_t> ends, Source source, Test test,
                               std::vector<std::int32_t> probes)
    : ends_(std::move(ends)), source_(std::move(source)), test_(std::move(test)), probes_(std::move(probes)) {}

void MaskConstraint::forbid(const std::int32_t * recent, std::size_t n_recent, Candidate * candidates,
                            std::size_t count) {
    Place & place = at(recent, n_recent);
    if (test_ && !place.mask && place.num_tested + count <= most_tested) {
        place.num_tested += count;
        test_(recent, n_recent, candidates, count);
        return;
    }
    const Mask & mask = after(recent, n_recent);
    for (std::size_t i = 0; i < count && !mask.is_free; ++i) {
        if (!allows(mask.allowed, candidates[i].id)) {
            candidates[i].logit = -std::numeric_limits<float>::infinity();
        }
    }
}

bool MaskConstraint::allows_all(const std::int32_t * recent, std::size_t n_recent) {
    return !test_ && after(recent, n_recent).is_free;
}

std::optional<Constraint::Forced> MaskConstraint::forced(const std::int32_t * recent, std::size_t n_recent) {
    if (test_ && has_choice(recent, n_recent)) {
        return std::nullopt;
    }
    const Mask & mask = after(recent, n_recent);
    if (mask.is_free || mask.may_end) {
        return std::nullopt;
    }
    const std::int32_t only = only_one(mask.allowed);
    if (only >= 0) {
        return Forced{only, true};
    }
    return allows(mask.allowed, mask.guess) ? std::optional(Forced{mask.guess, false}) : std::nullopt;
}

// Whether two of the probes are allowed. The first probes are tested alone at first: if there is a choice, two of them
// are nearly always allowed.
bool MaskConstraint::has_choice(const std::int32_t * recent, std::size_t n_recent) {
    std::size_t num_allowed = 0;
    for (std::size_t done = 0; done < probes_.size() && num_allowed < 2;) {
        const std::size_t end = done == 0 ? std::min(first_probes, probes_.size()) : probes_.size();
        std::vector<Candidate> candidates;
        for (; done < end; ++done) {
            candidates.push_back({probes_[done], 0.0F});
        }
        test_(recent, n_recent, candidates.data(), candidates.size());
        num_allowed += static_cast<std::size_t>(std::count_if(
            candidates.begin(), candidates.end(), [](const Candidate & candidate) { return candidate.logit == 0.0F; }));
    }
    return num_allowed >= 2;
}

MaskConstraint::Place & MaskConstraint::at(const std::int32_t * recent, std::size_t n_recent) {
    const auto [known, given] = std::mismatch(steps_.begin(), steps_.end(), recent, recent + n_recent);
    // If `recent` is a beginning of steps_, the later places are kept, because they may be asked for again.
    if (given != recent + n_recent) {
        const auto common = static_cast<std::size_t>(known - steps_.begin());
        places_.erase(places_.upper_bound(common), places_.end());
        steps_.assign(recent, recent + n_recent);
    }
    if (places_.size() >= most_places && places_.count(n_recent) == 0) {
        places_.erase(places_.begin());
    }
    return places_[n_recent];
}

const MaskConstraint::Mask & MaskConstraint::after(const std::int32_t * recent, std::size_t n_recent) {
    Place & place = at(recent, n_recent);
    if (!place.mask) {
        Mask mask = source_(recent, n_recent);
        if (!mask.is_free) {
            set_ends(mask);
        }
        place.mask = std::move(mask);
    }
    return *place.mask;
}

void MaskConstraint::set_ends(Mask & mask) const {
    for (const std::int32_t end : ends_) {
        const auto index = static_cast<std::size_t>(end);
        if (index / bits >= mask.allowed.size()) {
            mask.allowed.resize(index / bits + 1);
        }
        std::uint32_t & word = mask.allowed[index / bits];
        const std::uint32_t bit = std::uint32_t{1} << (index % bits);
        word = mask.may_end ? word | bit : word & ~bit;
    }
}

}  // namespace specllama
