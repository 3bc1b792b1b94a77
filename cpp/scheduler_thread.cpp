// Many texts at once: the thread that decodes for all of them.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>

#include "clock.hpp"
#include "scheduler.hpp"

namespace specllama {

namespace {

// Seconds that the others wait for a text whose caller has its token: more than Python takes for eight of them.
constexpr double patience = 0.02;
// Seconds after which a paused text does not wait any more for the end of one whose caller is away.
constexpr double absence = 1.0;
constexpr double forgetting = 0.2;  // of what a token of a prompt costs

bool is_prompt(const Sequence::Addition & addition) { return addition.first_output >= addition.count; }

bool is_no_room(const std::exception_ptr & error) {
    try {
        std::rethrow_exception(error);
    } catch (const NoRoomError &) {
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace

Decoder & Scheduler::decoder_of(const std::vector<Want *> & group) { return group[0]->addition.sequence->decoder(); }

std::size_t Scheduler::num_tokens(const std::vector<Want *> & group) {
    std::size_t count = 0;
    for (const Want * want : group) {
        count += want->addition.count;
    }
    return count;
}

// Whether nobody is at work any more, or is waited for.
bool Scheduler::is_ready(double now) {
    if (wants_.empty() || num_working_ > 0) {
        return false;
    }
    bool all_here = true;
    for (Seat * seat : seats_) {
        if (seat->state != Seat::State::away) {
            continue;
        }
        // From when on somebody waits for it, if that is later than when it went.
        if (now - std::max(seat->away_since, idle_since_) < patience) {
            all_here = false;
        } else {
            seat->state = Seat::State::late;
        }
    }
    return all_here;
}

void Scheduler::run() {
    std::unique_lock lock(mutex_);
    idle_since_ = now_seconds();
    while (!closed_) {
        if (num_working_ == 0) {
            resume_one();
        }
        if (wants_.empty()) {
            wait_for_wants(lock);
            idle_since_ = now_seconds();
        } else if (!is_ready(now_seconds())) {
            work_.wait_for(lock, std::chrono::duration<double>(num_working_ > 0 ? longest_wait_ : patience / 4.0));
        } else {
            const std::vector<Want *> group = next_group();
            counters_.waiting_seconds += now_seconds() - idle_since_;
            lock.unlock();
            serve(group);
            lock.lock();
            num_served_ += 1;
            idle_since_ = now_seconds();
            done_.notify_all();
        }
    }
    for (Want * want : wants_) {
        want->error = std::make_exception_ptr(closed());
    }
    finish(wants_);
    wants_.clear();
    done_.notify_all();
}

void Scheduler::wait_for_wants(std::unique_lock<std::mutex> & lock) {
    const auto is_paused = [this] {
        return std::any_of(seats_.begin(), seats_.end(), [](const Seat * seat) { return seat->is_here; });
    };
    if (is_paused()) {  // it may go on without a word of anybody: when the others have been away for long
        work_.wait_for(lock, std::chrono::duration<double>(longest_wait_));
    } else {
        work_.wait(lock, [&] { return closed_ || !wants_.empty() || is_paused(); });
    }
}

// A paused text goes on if there is room for it. If there is not, none that is younger begins.
void Scheduler::resume_one() {
    Seat * seat = Room::oldest_paused(seats_);
    if (seat == nullptr) {
        return;
    }
    if (room_.may_resume(*seat, seats_, now_seconds() - absence)) {
        start(*seat);
    } else {
        room_.hold_back(seats_, *seat);
        take_paused(wants_);
    }
    done_.notify_all();
}

// The draft's decodes before the target's, as many as fit: the one that has waited longest, so that everybody's turn
// comes, then rounds before prompts.
std::vector<Scheduler::Want *> Scheduler::next_group() {
    const auto is_drafts = [this](const Want * want) {
        return &served_by(want->addition.sequence->decoder()) != &target();
    };
    const bool drafts = std::any_of(wants_.begin(), wants_.end(), is_drafts);
    std::vector<Want *> waiting;
    std::copy_if(wants_.begin(), wants_.end(), std::back_inserter(waiting),
                 [&](const Want * want) { return is_drafts(want) == drafts; });
    std::stable_partition(waiting.begin() + 1, waiting.end(),
                          [](const Want * want) { return !is_prompt(want->addition); });
    std::vector<Want *> group;
    std::size_t room = served_[drafts ? 1 : 0].decoder->n_batch();
    for (Want * want : waiting) {
        // Of texts one of which cannot be decoded each shows by itself whether it is that.
        if (want->addition.count <= room && (group.empty() || !(want->is_alone || group[0]->is_alone))) {
            group.push_back(want);
            room -= want->addition.count;
        }
    }
    const auto is_taken = [&group](const Want * want) {
        return std::find(group.begin(), group.end(), want) != group.end();
    };
    wants_.erase(std::remove_if(wants_.begin(), wants_.end(), is_taken), wants_.end());
    return group;
}

std::exception_ptr Scheduler::try_together(const std::vector<Want *> & group) {
    std::vector<Sequence::Addition> additions;
    additions.reserve(group.size());
    for (const Want * want : group) {
        additions.push_back(want->addition);
    }
    const double start = now_seconds();
    try {
        Sequence::decode_together(additions.data(), additions.size());
    } catch (...) {
        return std::current_exception();
    }
    const double seconds = now_seconds() - start;
    const std::lock_guard lock(mutex_);
    observe(served_by(additions[0].sequence->decoder()), group, seconds);
    return nullptr;
}

// Decodes the group, pauses some of it, or gives it errors. What has to be tried again goes back to the wants.
void Scheduler::serve(std::vector<Want *> group) {
    std::unique_lock lock(mutex_);
    while (!group.empty() && !room_.has_room(decoder_of(group), num_tokens(group)) && give_way(group)) {
    }
    if (group.empty()) {
        return;
    }
    lock.unlock();
    const std::exception_ptr error = try_together(group);
    lock.lock();
    if (error && is_no_room(error)) {
        // An older llama.cpp wants its cells side by side. Or somebody is at work now who can be paused when it waits.
        const auto is_working = [](const Seat * seat) { return seat->state == Seat::State::working; };
        if (give_way(group) || std::any_of(seats_.begin(), seats_.end(), is_working)) {
            wants_.insert(wants_.begin(), group.begin(), group.end());
            return;
        }
    } else if (error && group.size() > 1) {
        for (Want * want : group) {
            want->is_alone = true;
        }
        wants_.insert(wants_.begin(), group.begin(), group.end());
        return;
    }
    for (Want * want : group) {
        want->error = error;
    }
    finish(group);
}

// Makes some room for the group, which may lose texts thereby. Whether there was any to be made.
bool Scheduler::give_way(std::vector<Want *> & group) {
    if (!room_.make(decoder_of(group), seats_)) {
        return false;
    }
    take_paused(wants_);
    take_paused(group);
    return true;
}

// Their threads are at work again.
void Scheduler::finish(const std::vector<Want *> & group) {
    for (Want * want : group) {
        want->is_done = true;
        num_working_ += 1;
        if (want->seat != nullptr) {
            want->seat->state = Seat::State::working;
        }
    }
}

// Those of texts that have been paused are done with.
void Scheduler::take_paused(std::vector<Want *> & wants) {
    const auto first = std::stable_partition(wants.begin(), wants.end(), [](const Want * want) {
        return want->seat == nullptr || want->seat->state != Seat::State::paused;
    });
    for (auto paused = first; paused != wants.end(); ++paused) {
        (*paused)->is_paused = (*paused)->is_done = true;
    }
    wants.erase(first, wants.end());
}

void Scheduler::observe(Served & served, const std::vector<Want *> & group, double seconds) {
    const std::size_t count = num_tokens(group);
    const bool has_prompt =
        std::any_of(group.begin(), group.end(), [](const Want * want) { return is_prompt(want->addition); });
    if (!has_prompt || &served != &target()) {  // whether a draft's prompt pays is a matter of its costs
        served.costs.observe(count, seconds);
    }
    if (has_prompt && count >= least_chunk_) {
        const double each = seconds / static_cast<double>(count);
        served.token_seconds += (served.token_seconds == 0.0 ? 1.0 : forgetting) * (each - served.token_seconds);
    }
    counters_.decode_seconds += seconds;
    if (&served == &target()) {
        counters_.num_batches += 1;
        counters_.most_texts = std::max(counters_.most_texts, group.size());
        counters_.num_tokens += count;
    }
}

}  // namespace specllama
