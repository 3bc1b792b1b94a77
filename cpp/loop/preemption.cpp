// Which text gives up its cells when the cache of many texts is full.
#include "loop/preemption.hpp"

#include <algorithm>
#include <mutex>

namespace specllama {

namespace {

constexpr std::size_t margin = 64;  // tokens of further room: a text that only just fits would soon be paused again

ScheduledText * youngest(const CacheRoom::Texts & texts, bool (*is_meant)(const ScheduledText &)) {
    ScheduledText * found = nullptr;
    for (ScheduledText * text : texts) {
        if (is_meant(*text) && (found == nullptr || text->number > found->number)) {
            found = text;
        }
    }
    return found;
}

// The youngest of the texts that are late, or else of the others; never the last text that is not paused.
ScheduledText * next_to_pause(const CacheRoom::Texts & texts) {
    const auto is_active = [](const ScheduledText * text) { return text->state != ScheduledText::State::paused; };
    if (std::count_if(texts.begin(), texts.end(), is_active) < 2) {
        return nullptr;
    }
    ScheduledText * late =
        youngest(texts, [](const ScheduledText & text) { return text.state == ScheduledText::State::late; });
    return late != nullptr ? late : youngest(texts, [](const ScheduledText & text) {
        return text.state == ScheduledText::State::waiting || text.state == ScheduledText::State::away;
    });
}

// The number of cells that the sequences hold. A cell that several sequences share counts once.
std::size_t num_cells(const std::vector<const Sequence *> & sequences) {
    std::vector<std::uint64_t> cells;
    for (const Sequence * one : sequences) {
        cells.insert(cells.end(), one->cells().begin(), one->cells().end());
    }
    std::sort(cells.begin(), cells.end());
    return static_cast<std::size_t>(std::unique(cells.begin(), cells.end()) - cells.begin());
}

}  // namespace

Sequence * CacheRoom::sequence(const ScheduledText & text, std::size_t k) const {
    const std::lock_guard lock(decoders_[k]->memory_mutex());
    const auto found = decoders_[k]->sequences().find(text.id);
    return found != decoders_[k]->sequences().end() ? found->second : nullptr;
}

bool CacheRoom::make(Decoder & decoder, const Texts & texts) {
    if (clear_free(decoder, texts)) {
        return true;
    }
    ScheduledText * text = next_to_pause(texts);
    if (text == nullptr) {
        return false;
    }
    pause(*text);
    return true;
}

bool CacheRoom::clear_free(Decoder & decoder, const Texts & texts) {
    const std::lock_guard lock(decoder.memory_mutex());
    if (!decoder.is_open()) {
        return false;
    }
    Sequence * longest = nullptr;
    for (const auto & [id, one] : decoder.sequences()) {
        const auto has_it = [number = id](const ScheduledText * text) { return text->id == number; };
        if (std::any_of(texts.begin(), texts.end(), has_it)) {
            continue;
        }
        if (!one->tokens().empty() && (longest == nullptr || one->tokens().size() > longest->tokens().size())) {
            longest = one;
        }
    }
    if (longest != nullptr) {
        longest->keep(0);
    }
    return longest != nullptr;
}

void CacheRoom::pause(ScheduledText & text) {
    text.held.resize(decoders_.size());
    for (std::size_t k = 0; k < decoders_.size(); ++k) {
        const std::lock_guard lock(decoders_[k]->memory_mutex());
        Sequence * cache = sequence(text, k);
        // A head's cells stay: its memory has room for all texts, and its cells could not be decoded again.
        if (cache == nullptr || !decoders_[k]->is_open() || decoders_[k]->is_head()) {
            continue;
        }
        // A text can be paused again before all of its tokens are back in the cache. `held` has all of them already.
        if (cache->tokens().size() > text.held[k].size()) {
            text.held[k] = cache->tokens();
        }
        cache->drop_plan();
        cache->keep(0);
    }
    text.state = ScheduledText::State::paused;
    num_pauses_ += 1;
}

ScheduledText * CacheRoom::oldest_paused(const Texts & texts) {
    ScheduledText * oldest = nullptr;
    for (ScheduledText * text : texts) {
        if (text->is_here && text->state == ScheduledText::State::paused &&
            (oldest == nullptr || text->number < oldest->number)) {
            oldest = text;
        }
    }
    return oldest;
}

bool CacheRoom::may_resume(const ScheduledText & paused, const Texts & texts, double since) const {
    const auto is_expected = [since](const ScheduledText * text) {
        return text->state != ScheduledText::State::paused && (!text->is_between_calls() || text->away_since > since);
    };
    return std::none_of(texts.begin(), texts.end(), is_expected) || fits(paused, texts);
}

void CacheRoom::hold_back(const Texts & texts, const ScheduledText & paused) {
    for (ScheduledText * text : texts) {
        if (text->state == ScheduledText::State::waiting && !text->generating && text->number > paused.number) {
            pause(*text);
        }
    }
}

bool CacheRoom::has_room(Decoder & decoder, std::size_t count) const {
    const std::lock_guard lock(decoder.memory_mutex());
    std::vector<const Sequence *> all;
    std::size_t most = count;
    for (const auto & [id, one] : decoder.sequences()) {
        all.push_back(one);
        most += one->tokens().size();
    }
    return most <= decoder.num_cells() || num_cells(all) + count <= decoder.num_cells();
}

bool CacheRoom::fits(const ScheduledText & paused, const Texts & texts) const {
    for (std::size_t k = 0; k < decoders_.size(); ++k) {
        const std::lock_guard lock(decoders_[k]->memory_mutex());
        const std::vector<int32_t> & held = paused.held[k];
        std::vector<const Sequence *> active;
        std::size_t expected = paused.wanted + margin;
        std::size_t shared = 0;
        for (const ScheduledText * text : texts) {
            const Sequence * cache = text->state == ScheduledText::State::paused ? nullptr : sequence(*text, k);
            if (cache == nullptr) {
                continue;
            }
            active.push_back(cache);
            shared = std::max(shared, num_common(held, cache->tokens()));
            // A text that holds fewer tokens than before its pause is being decoded again.
            if (k < text->held.size() && text->held[k].size() > cache->tokens().size()) {
                expected += text->held[k].size() - cache->tokens().size();
            }
        }
        if (num_cells(active) + expected + held.size() - shared > decoders_[k]->num_cells()) {
            return false;
        }
    }
    return true;
}

}  // namespace specllama
