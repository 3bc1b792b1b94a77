// Who gives way where the cache of many texts is full.
#include "loop/preemption.hpp"

#include <algorithm>
#include <mutex>

namespace specllama {

namespace {

constexpr std::size_t margin = 64;  // tokens: a text that has only just room would soon be paused again

Seat * youngest(const Room::Seats & seats, bool (*is_meant)(const Seat &)) {
    Seat * found = nullptr;
    for (Seat * seat : seats) {
        if (is_meant(*seat) && (found == nullptr || seat->number > found->number)) {
            found = seat;
        }
    }
    return found;
}

// Those who read slowly first, then the youngest; never the last one that is not paused.
Seat * next_to_pause(const Room::Seats & seats) {
    const auto is_active = [](const Seat * seat) { return seat->state != Seat::State::paused; };
    if (std::count_if(seats.begin(), seats.end(), is_active) < 2) {
        return nullptr;
    }
    Seat * late = youngest(seats, [](const Seat & seat) { return seat.state == Seat::State::late; });
    return late != nullptr ? late : youngest(seats, [](const Seat & seat) {
        return seat.state == Seat::State::waiting || seat.state == Seat::State::away;
    });
}

// What texts share is held once.
std::size_t num_cells(const std::vector<const Sequence *> & sequences) {
    std::vector<std::uint64_t> cells;
    for (const Sequence * one : sequences) {
        cells.insert(cells.end(), one->cells().begin(), one->cells().end());
    }
    std::sort(cells.begin(), cells.end());
    return static_cast<std::size_t>(std::unique(cells.begin(), cells.end()) - cells.begin());
}

}  // namespace

Sequence * Room::sequence(const Seat & seat, std::size_t k) const {
    const std::lock_guard lock(decoders_[k]->memory_mutex());
    const auto found = decoders_[k]->sequences().find(seat.id);
    return found != decoders_[k]->sequences().end() ? found->second : nullptr;
}

bool Room::make(Decoder & decoder, const Seats & seats) {
    if (clear_free(decoder, seats)) {
        return true;
    }
    Seat * seat = next_to_pause(seats);
    if (seat == nullptr) {
        return false;
    }
    pause(*seat);
    return true;
}

bool Room::clear_free(Decoder & decoder, const Seats & seats) {
    const std::lock_guard lock(decoder.memory_mutex());
    if (!decoder.is_open()) {
        return false;
    }
    Sequence * longest = nullptr;
    for (const auto & [id, one] : decoder.sequences()) {
        const auto has_it = [number = id](const Seat * seat) { return seat->id == number; };
        if (std::any_of(seats.begin(), seats.end(), has_it)) {
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

void Room::pause(Seat & seat) {
    seat.held.resize(decoders_.size());
    for (std::size_t k = 0; k < decoders_.size(); ++k) {
        const std::lock_guard lock(decoders_[k]->memory_mutex());
        Sequence * own = sequence(seat, k);
        // A head's text cannot be decoded anew, and its memory has room for all.
        if (own == nullptr || !decoders_[k]->is_open() || decoders_[k]->is_head()) {
            continue;
        }
        // A text can be paused while it is decoded anew: then it is known already what it is to hold.
        if (own->tokens().size() > seat.held[k].size()) {
            seat.held[k] = own->tokens();
        }
        own->drop_plan();
        own->keep(0);
    }
    seat.state = Seat::State::paused;
    num_pauses_ += 1;
}

Seat * Room::oldest_paused(const Seats & seats) {
    Seat * oldest = nullptr;
    for (Seat * seat : seats) {
        if (seat->is_here && seat->state == Seat::State::paused &&
            (oldest == nullptr || seat->number < oldest->number)) {
            oldest = seat;
        }
    }
    return oldest;
}

bool Room::may_resume(const Seat & paused, const Seats & seats, double since) const {
    const auto is_expected = [since](const Seat * seat) {
        return seat->state != Seat::State::paused && (!seat->is_between_calls() || seat->away_since > since);
    };
    return std::none_of(seats.begin(), seats.end(), is_expected) || fits(paused, seats);
}

void Room::hold_back(const Seats & seats, const Seat & paused) {
    for (Seat * seat : seats) {
        if (seat->state == Seat::State::waiting && !seat->generating && seat->number > paused.number) {
            pause(*seat);
        }
    }
}

bool Room::has_room(Decoder & decoder, std::size_t count) const {
    const std::lock_guard lock(decoder.memory_mutex());
    std::vector<const Sequence *> all;
    std::size_t most = count;
    for (const auto & [id, one] : decoder.sequences()) {
        all.push_back(one);
        most += one->tokens().size();
    }
    return most <= decoder.num_cells() || num_cells(all) + count <= decoder.num_cells();
}

bool Room::fits(const Seat & paused, const Seats & seats) const {
    for (std::size_t k = 0; k < decoders_.size(); ++k) {
        const std::lock_guard lock(decoders_[k]->memory_mutex());
        const std::vector<int32_t> & held = paused.held[k];
        std::vector<const Sequence *> active;
        std::size_t expected = paused.wanted + margin;
        std::size_t shared = 0;
        for (const Seat * seat : seats) {
            const Sequence * own = seat->state == Seat::State::paused ? nullptr : sequence(*seat, k);
            if (own == nullptr) {
                continue;
            }
            active.push_back(own);
            shared = std::max(shared, num_common(held, own->tokens()));
            if (k < seat->held.size() && seat->held[k].size() > own->tokens().size()) {  // it is being decoded anew
                expected += seat->held[k].size() - own->tokens().size();
            }
        }
        if (num_cells(active) + expected + held.size() - shared > decoders_[k]->num_cells()) {
            return false;
        }
    }
    return true;
}

}  // namespace specllama
