// An index that finds where the end of a growing text has occurred before. Knows neither llama.cpp nor Python.
#include "pacing/suffix_index.hpp"

#include <algorithm>

namespace specllama {

void SuffixIndex::append(int32_t token) {
    tokens_.push_back(token);
    for (Grams & grams : grams_) {
        if (tokens_.size() > grams.heads.size()) {
            grow(grams);
        } else {
            grams.previous.push_back(0);
            link(grams, tokens_.size() - 1);
        }
    }
}

void SuffixIndex::truncate(std::size_t count) {
    while (tokens_.size() > count) {
        const std::size_t last = tokens_.size() - 1;
        for (Grams & grams : grams_) {
            if (last + 1 >= grams.length) {
                // The n-gram that was linked last is the head of its chain, so the n-gram before it is the new head.
                grams.heads[slot(grams, last)] = grams.previous[last];
            }
            grams.previous.pop_back();
        }
        tokens_.pop_back();
    }
}

SuffixIndex::Match SuffixIndex::longest() const {
    for (const Grams & grams : grams_) {
        const Match match = longest_of(grams);
        if (match.length > 0) {
            return match;
        }
    }
    return {};
}

SuffixIndex::Match SuffixIndex::longest_of(const Grams & grams) const {
    Match best;
    if (tokens_.size() < grams.length) {
        return best;
    }
    uint32_t at = grams.previous[tokens_.size() - 1];
    for (std::size_t visited = 0; at != 0 && visited < max_visited; ++visited) {
        const std::size_t length = tokens_[at] < 0 ? 0 : common(at - 1);
        if (length > best.length && length >= grams.length) {
            best = {at, length, 0};
        }
        if (length == best.length && length > 0) {
            best.num_other += tokens_[at] == tokens_[best.next] ? 0 : 1;
        }
        at = grams.previous[at - 1];
    }
    return best;
}

// How many tokens up to index `last` equal those at the end of the text; at most max_match.
std::size_t SuffixIndex::common(std::size_t last) const {
    const std::size_t end = tokens_.size() - 1;
    const std::size_t most = std::min(max_match, last + 1);
    std::size_t length = 0;
    while (length < most && tokens_[last - length] == tokens_[end - length]) {
        ++length;
    }
    return length;
}

std::size_t SuffixIndex::slot(const Grams & grams, std::size_t last) const {
    uint64_t hash = 0;
    for (std::size_t i = last + 1 - grams.length; i <= last; ++i) {
        hash = (hash ^ static_cast<uint32_t>(tokens_[i])) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32U;
    }
    return static_cast<std::size_t>(hash) & (grams.heads.size() - 1);
}

void SuffixIndex::link(Grams & grams, std::size_t last) {
    if (last + 1 < grams.length) {
        return;
    }
    uint32_t & head = grams.heads[slot(grams, last)];
    grams.previous[last] = head;
    head = static_cast<uint32_t>(last + 1);
}

void SuffixIndex::grow(Grams & grams) {
    grams.heads.assign(std::max<std::size_t>(1024, 2 * grams.heads.size()), 0);
    grams.previous.assign(tokens_.size(), 0);
    for (std::size_t last = 0; last < tokens_.size(); ++last) {
        link(grams, last);
    }
}

std::size_t SuffixIndex::memory() const {
    std::size_t bytes = tokens_.capacity() * sizeof(int32_t);
    for (const Grams & grams : grams_) {
        bytes += (grams.previous.capacity() + grams.heads.capacity()) * sizeof(uint32_t);
    }
    return bytes;
}

}  // namespace specllama
