// Many texts at once, decoded together.
#include "scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"
#include "pace.hpp"

namespace specllama {

namespace {

// Seconds that texts which are generating wait for a part of somebody's prompt.
constexpr double prompt_share = 0.25;
constexpr std::size_t first_chunk = 64;  // tokens of a prompt, before it is known what they cost

// What is decoded anew is no round's time, and what is borrowed for it no reused prompt, however it ends: a text may be
// paused again, or given up.
class Uncounted {
public:
    Uncounted() = default;
    Uncounted(const Uncounted &) = delete;
    Uncounted & operator=(const Uncounted &) = delete;
    ~Uncounted() {
        for (const auto & [sequence, effort] : before_) {
            sequence->set_effort(effort);
        }
    }
    void add(Sequence & sequence) { before_.emplace_back(&sequence, sequence.effort()); }

private:
    std::vector<std::pair<Sequence *, Sequence::Effort>> before_;
};

std::vector<std::shared_ptr<Decoder>> decoders_of(const std::shared_ptr<Decoder> & target,
                                                  const std::shared_ptr<Decoder> & draft) {
    return draft ? std::vector{target, draft} : std::vector{target};
}

}  // namespace

ClosedError Scheduler::closed() {
    return ClosedError("the texts' contexts are closed: this Llama was closed, or opened anew");
}

Scheduler::Scheduler(std::shared_ptr<Decoder> target, std::shared_ptr<Decoder> draft)
    : room_(decoders_of(target, draft)) {
    served_.push_back({std::move(target), {}, 0.0});
    if (draft) {
        served_.push_back({std::move(draft), {}, 0.0});
    }
    heed_ = [this] {
        const std::lock_guard lock(mutex_);
        if (closed_) {
            throw closed();
        }
    };
    for (const Served & served : served_) {
        // A sliding window gives cells that one text no longer looks at to another, and with them its way back.
        if (served.decoder->rollback() != Rollback::seq_rm) {
            throw std::invalid_argument("the memory of the " + served.decoder->name() +
                                        " is recurrent or a sliding window: its texts cannot be decoded together");
        }
    }
    for (const Served & served : served_) {
        served.decoder->set_scheduler(this);
        served.decoder->ask(&heed_);
    }
    thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
    close();
    for (const Served & served : served_) {
        served.decoder->set_scheduler(nullptr);
    }
}

void Scheduler::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
    }
    work_.notify_all();
    done_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
        std::unique_lock lock(mutex_);
        work_.wait(lock, [this] { return num_inside_ == 0; });
        for (const Served & served : served_) {
            served.decoder->ask(nullptr);
        }
    }
}

void Scheduler::enter(Seat & seat) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        seats_.erase(std::remove(seats_.begin(), seats_.end(), &seat), seats_.end());
        throw closed();
    }
    if (seat.is_inside) {
        throw BusyError("this text is generating in another thread: wait for it, or take another place");
    }
    seat.is_inside = true;
    num_inside_ += 1;
    if (seat.state == Seat::State::out) {
        seats_.push_back(&seat);
        seat.number = ++num_seats_;
    }
    if (seat.state != Seat::State::paused) {
        start(seat);
    }
}

void Scheduler::start(Seat & seat) {
    seat.state = Seat::State::working;
    num_working_ += 1;
}

void Scheduler::leave(Seat & seat, bool under_way) {
    {
        const std::lock_guard lock(mutex_);
        seat.is_inside = false;
        num_inside_ -= 1;
        const bool is_paused = seat.state == Seat::State::paused;
        num_working_ -= is_paused ? 0 : 1;
        if (!under_way) {
            seat.state = Seat::State::out;
            seat.end();
            seats_.erase(std::remove(seats_.begin(), seats_.end(), &seat), seats_.end());
        } else if (!is_paused) {
            seat.state = Seat::State::away;
            seat.away_since = now_seconds();
        }
    }
    work_.notify_all();
}

Scheduler::Visit::Visit(Scheduler & scheduler, Seat & seat, const bool & under_way, const std::function<void()> * heed)
    : scheduler_(scheduler), seat_(seat), under_way_(under_way) {
    scheduler_.enter(seat_);
    seat_.heed = heed;
    try {
        scheduler_.come_back(seat_, under_way_);
    } catch (...) {
        scheduler_.leave(seat_, under_way_);
        throw;
    }
}

Scheduler::Visit::~Visit() { scheduler_.leave(seat_, under_way_); }

// A text may have been paused while it was away.
void Scheduler::come_back(Seat & seat, bool under_way) {
    {
        const std::lock_guard lock(mutex_);
        if (seat.state != Seat::State::paused) {
            return;
        }
        if (!under_way) {
            start(seat);
            return;
        }
    }
    restore(seat);
}

void Scheduler::decode(const Sequence::Addition & addition) {
    while (Seat * paused = try_decode(addition)) {
        restore(*paused);
    }
}

// Its text if that was paused instead; null: it was decoded.
Seat * Scheduler::try_decode(const Sequence::Addition & addition) {
    addition.sequence->refuse_bad(addition);
    Want want;
    want.addition = addition;
    {
        std::unique_lock lock(mutex_);
        if (closed_) {
            throw closed();
        }
        want.seat = find_seat(*addition.sequence);
        if (want.seat != nullptr) {
            want.seat->state = Seat::State::waiting;
            want.seat->wanted = addition.count;
            if (addition.first_output < addition.count) {  // no part of a prompt, and nothing that is decoded anew
                want.seat->asks(addition.count, &served_by(addition.sequence->decoder()) == &target());
            }
        }
        wants_.push_back(&want);
        num_working_ -= 1;  // the other thread adds it again, before anybody could take this text for absent
        work_.notify_all();
        done_.wait(lock, [&want] { return want.is_done; });
    }
    if (want.error) {
        std::rethrow_exception(want.error);
    }
    return want.is_paused ? want.seat : nullptr;
}

Seat * Scheduler::find_seat(const Sequence & sequence) {
    const auto has_it = [&sequence](const Seat * seat) { return seat->id == sequence.id(); };
    const auto found = std::find_if(seats_.begin(), seats_.end(), has_it);
    return found != seats_.end() ? *found : nullptr;
}

// Waits until there is room for a paused text, and decodes again what it held.
void Scheduler::restore(Seat & seat) {
    Uncounted uncounted;
    for (std::size_t k = 0; k < seat.held.size(); ++k) {
        if (Sequence * own = room_.sequence(seat, k)) {
            uncounted.add(*own);
        }
    }
    try {
        do {
            wait_for_room(seat);
        } while (!try_restore(seat));
    } catch (...) {
        const std::lock_guard lock(mutex_);
        if (seat.state != Seat::State::paused) {
            seat.held.clear();  // its loop finds that the memory holds less than it should
        }
        throw;
    }
    const std::lock_guard lock(mutex_);
    seat.held.clear();
}

void Scheduler::wait_for_room(Seat & seat) {
    std::unique_lock lock(mutex_);
    seat.is_here = true;
    work_.notify_all();
    try {
        while (seat.state == Seat::State::paused) {
            if (closed_) {
                throw closed();
            }
            done_.wait_for(lock, std::chrono::duration<double>(longest_wait_),
                           [this, &seat] { return closed_ || seat.state != Seat::State::paused; });
            lock.unlock();
            seat.ask();
            lock.lock();
        }
    } catch (...) {
        if (!lock.owns_lock()) {
            lock.lock();
        }
        if (seat.state != Seat::State::paused) {  // meanwhile there was room
            seat.state = Seat::State::paused;
            num_working_ -= 1;
        }
        seat.is_here = false;
        throw;
    }
    seat.is_here = false;
}

// False if it was paused again.
bool Scheduler::try_restore(Seat & seat) {
    for (std::size_t k = 0; k < seat.held.size(); ++k) {
        Sequence * own = room_.sequence(seat, k);
        if (own == nullptr) {
            continue;
        }
        try {
            if (!try_restore(seat, *own, seat.held[k])) {
                return false;
            }
        } catch (const DecodeError &) {
            if (k == 0) {
                throw;
            }
            // A draft catches up by itself, or is given up.
        }
    }
    return true;
}

bool Scheduler::try_restore(const Seat & seat, Sequence & own, const std::vector<int32_t> & held) {
    while (own.tokens().size() < held.size()) {
        seat.ask();
        if (!share_prompt(own, held)) {
            continue;
        }
        const std::size_t done = own.tokens().size();
        const std::size_t count = std::min(held.size() - done, chunk(own.decoder()));
        if (try_decode({&own, held.data() + done, count, count}) != nullptr) {
            return false;
        }
    }
    return true;
}

bool Scheduler::share_prompt(Sequence & sequence, const std::vector<int32_t> & history) {
    sequence.borrow(history);
    if (sequence.plan(history)) {
        return true;
    }
    std::unique_lock lock(mutex_);
    if (closed_) {
        throw closed();
    }
    const std::size_t before = num_served_;
    num_working_ -= 1;
    work_.notify_all();
    done_.wait_for(lock, std::chrono::duration<double>(longest_wait_),
                   [this, before] { return closed_ || num_served_ != before; });
    num_working_ += 1;
    return false;
}

std::size_t Scheduler::chunk(const Decoder & decoder) {
    const std::lock_guard lock(mutex_);
    const std::size_t num_generating = num_in_rounds();
    const auto is_prompt = [](const Seat * seat) { return !seat->generating && seat->state != Seat::State::paused; };
    const auto num_prompts = static_cast<std::size_t>(std::count_if(seats_.begin(), seats_.end(), is_prompt));
    std::size_t most = decoder.n_batch();
    if (num_generating > 0) {
        const double seconds = served_by(decoder).token_seconds;
        most = seconds > 0.0 ? static_cast<std::size_t>(prompt_share / seconds) : first_chunk;
        most = std::min(most, decoder.n_batch() / 2);  // the others' tokens fit beside it
    }
    return std::clamp(most / std::max<std::size_t>(1, num_prompts), std::min(least_chunk_, decoder.n_batch()),
                      decoder.n_batch());
}

void Scheduler::begin_round(Seat & seat) {
    const std::lock_guard lock(mutex_);
    seat.generating = true;
}

std::size_t Scheduler::num_in_rounds() const {
    return static_cast<std::size_t>(std::count_if(
        seats_.begin(), seats_.end(), [](const Seat * seat) { return seat->generating && seat->shares_batches(); }));
}

void Scheduler::share_costs(const Seat & seat, Pace & pace) {
    const std::lock_guard lock(mutex_);
    std::size_t texts = 1;
    std::size_t others = 0;
    std::size_t num_drawing = 1;
    for (const Seat * other : seats_) {
        // Those whose prompts are being decoded will soon share the batches, too.
        if (other != &seat && other->shares_batches()) {
            texts += 1;
            others += other->brought;
            num_drawing += other->is_drawing() ? 1 : 0;
        }
    }
    pace.share(texts, others, served_[0].costs, num_drawing, served_.size() > 1 ? &served_[1].costs : nullptr);
}

Scheduler::Counters Scheduler::counters() {
    const std::lock_guard lock(mutex_);
    Counters counters = counters_;
    counters.num_pauses = room_.num_pauses();
    return counters;
}

std::size_t Scheduler::num_generating() {
    const std::lock_guard lock(mutex_);
    return num_in_rounds();
}

std::size_t Scheduler::num_drawing() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(seats_.begin(), seats_.end(), [](const Seat * seat) { return seat->is_drawing(); }));
}

CostModel Scheduler::costs(std::size_t which) {
    const std::lock_guard lock(mutex_);
    return which < served_.size() ? served_[which].costs : CostModel();
}

void Scheduler::restore_costs(std::size_t which, const std::map<std::size_t, double> & seconds) {
    const std::lock_guard lock(mutex_);
    if (which < served_.size()) {
        served_[which].costs.restore(seconds);
    }
}

}  // namespace specllama
