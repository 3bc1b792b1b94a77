// A list of some tokens of a vocabulary. Knows neither llama.cpp nor Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace specllama {

// The list consists of whole groups of `group_size` neighbouring ids, because the kernels multiply `group_size` rows of
// an output matrix at once.
class TokenList {
public:
    static constexpr std::size_t group_size = 16;

    explicit TokenList(std::size_t n_vocab) : n_vocab_(n_vocab) {}

    // Adds a token, with its whole group. A number that is no token of the vocabulary is passed over.
    void add(int32_t token) {
        const auto group = static_cast<int32_t>(static_cast<std::size_t>(token) / group_size);
        if (token >= 0 && static_cast<std::size_t>(token) < n_vocab_ && !find(group)) {
            groups_.insert(std::lower_bound(groups_.begin(), groups_.end(), group), group);
        }
    }

    // Adds all tokens of another list of the same vocabulary.
    void add(const TokenList & other) {
        std::vector<int32_t> both;
        both.reserve(groups_.size() + other.groups_.size());
        std::set_union(groups_.begin(), groups_.end(), other.groups_.begin(), other.groups_.end(),
                       std::back_inserter(both));
        groups_ = std::move(both);
    }

    // The numbers of the groups, ascending.
    const std::vector<int32_t> & groups() const { return groups_; }

    // The token at a place. Places are numbered from 0 on, by ascending ids.
    int32_t token(std::size_t place) const {
        const auto group = static_cast<std::size_t>(groups_[place / group_size]);
        return static_cast<int32_t>(group * group_size + place % group_size);
    }

    std::optional<std::size_t> place_of(int32_t token) const {
        const std::size_t id = static_cast<std::size_t>(token);
        const std::optional<std::size_t> group =
            token >= 0 && id < n_vocab_ ? find(static_cast<int32_t>(id / group_size)) : std::nullopt;
        return group ? std::optional(*group * group_size + id % group_size) : std::nullopt;
    }

    // Copies the logits of the listed tokens with ids below n to `out`, side by side. No other elements of `logits` [n]
    // are read.
    void gather(const float * logits, std::size_t n, std::vector<float> & out) const {
        out.clear();
        out.reserve(groups_.size() * group_size);
        for (const int32_t group : groups_) {
            const std::size_t first = static_cast<std::size_t>(group) * group_size;
            if (first < n) {
                out.insert(out.end(), logits + first, logits + std::min(first + group_size, n));
            }
        }
    }

private:
    std::optional<std::size_t> find(int32_t group) const {
        const auto found = std::lower_bound(groups_.begin(), groups_.end(), group);
        return found != groups_.end() && *found == group
                   ? std::optional(static_cast<std::size_t>(found - groups_.begin()))
                   : std::nullopt;
    }

    std::size_t n_vocab_;
    std::vector<int32_t> groups_;
};

}  // namespace specllama
