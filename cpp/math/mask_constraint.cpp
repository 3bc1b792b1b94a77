// A constraint that gets the allowed tokens of a position as one mask of the whole vocabulary.
#include "math/mask_constraint.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace specllama {

namespace {

constexpr std::size_t bits = 32;
constexpr std::size_t most_masks = 64;

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

MaskConstraint::MaskConstraint(std::vector<std::int32_t> ends, Source source)
    : ends_(std::move(ends)), source_(std::move(source)) {}

void MaskConstraint::forbid(const std::int32_t * recent, std::size_t n_recent, Candidate * candidates,
                            std::size_t count) {
    const Mask & mask = after(recent, n_recent);
    for (std::size_t i = 0; i < count && !mask.is_free; ++i) {
        if (!allows(mask.allowed, candidates[i].id)) {
            candidates[i].logit = -std::numeric_limits<float>::infinity();
        }
    }
}

bool MaskConstraint::allows_all(const std::int32_t * recent, std::size_t n_recent) {
    return after(recent, n_recent).is_free;
}

std::optional<Constraint::Forced> MaskConstraint::forced(const std::int32_t * recent, std::size_t n_recent) {
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

const MaskConstraint::Mask & MaskConstraint::after(const std::int32_t * recent, std::size_t n_recent) {
    const auto [known, given] = std::mismatch(steps_.begin(), steps_.end(), recent, recent + n_recent);
    // If `recent` is a beginning of steps_, the later masks are kept: they may be asked for again.
    if (given != recent + n_recent) {
        const auto common = static_cast<std::size_t>(known - steps_.begin());
        masks_.erase(masks_.upper_bound(common), masks_.end());
        steps_.assign(recent, recent + n_recent);
    }
    const auto found = masks_.find(n_recent);
    if (found != masks_.end()) {
        return found->second;
    }
    Mask mask = source_(recent, n_recent);
    if (!mask.is_free) {
        set_ends(mask);
    }
    if (masks_.size() >= most_masks) {
        masks_.erase(masks_.begin());
    }
    return masks_[n_recent] = std::move(mask);
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
