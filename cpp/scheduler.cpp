// Many texts at once, decoded together.
#include "scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>

#include "clock.hpp"
#include "errors.hpp"
#include "pace.hpp"

namespace specllama {

namespace {

// Seconds that the others wait for a text whose caller has its token: more than Python takes for eight of them.
constexpr double patience = 0.02;
// Seconds that texts which are generating wait for a part of somebody's prompt.
constexpr double prompt_share = 0.25;
constexpr std::size_t least_chunk = 16;  // tokens of a prompt: fewer are hardly faster
constexpr std::size_t first_chunk = 64;  // before it is known what they cost
constexpr double forgetting = 0.2;       // of what a token of a prompt costs
constexpr double longest_wait = 0.1;     // seconds between two looks at what changes without a word

ClosedError closed() { return ClosedError("the texts' contexts are closed: this Llama was closed, or opened anew"); }

bool is_prompt(const Sequence::Addition & addition) { return addition.first_output >= addition.count; }

}  // namespace

Scheduler::Scheduler(std::shared_ptr<Decoder> target, std::shared_ptr<Decoder> draft) {
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
        work_.wait(lock, [this] { return num_working_ == 0; });
        for (const Served & served : served_) {
            served.decoder->ask(nullptr);
        }
    }
}

void Scheduler::enter(Seat & seat) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        throw closed();
    }
    if (seat.state == Seat::State::working) {
        throw BusyError("this text is generating in another thread: wait for it, or take another place");
    }
    if (seat.state == Seat::State::out) {
        seats_.push_back(&seat);
    }
    seat.state = Seat::State::working;
    num_working_ += 1;
}

void Scheduler::leave(Seat & seat, bool under_way) {
    {
        const std::lock_guard lock(mutex_);
        num_working_ -= 1;
        if (under_way) {
            seat.state = Seat::State::away;
            seat.away_since = now_seconds();
        } else {
            seat.state = Seat::State::out;
            seat.generating = false;
            seats_.erase(std::remove(seats_.begin(), seats_.end(), &seat), seats_.end());
        }
    }
    work_.notify_all();
}

Scheduler::Visit::Visit(Scheduler & scheduler, Seat & seat, const bool & under_way)
    : scheduler_(scheduler), seat_(seat), under_way_(under_way) {
    scheduler_.enter(seat_);
}

Scheduler::Visit::~Visit() { scheduler_.leave(seat_, under_way_); }

void Scheduler::decode(const Sequence::Addition & addition) {
    addition.sequence->refuse_bad(addition);
    Want want{addition, false, nullptr};
    {
        std::unique_lock lock(mutex_);
        if (closed_) {
            throw closed();
        }
        wants_.push_back(&want);
        num_working_ -= 1;  // the other thread adds it again, before anybody could take this text for absent
        work_.notify_all();
        done_.wait(lock, [&want] { return want.is_done; });
    }
    if (want.error) {
        std::rethrow_exception(want.error);
    }
}

void Scheduler::share_prompt(Sequence & sequence, const std::vector<int32_t> & history) {
    for (;;) {
        sequence.borrow(history);
        if (!sequence.should_wait(history)) {
            break;
        }
        std::unique_lock lock(mutex_);
        if (closed_) {
            throw closed();
        }
        const std::size_t before = num_served_;
        num_working_ -= 1;
        work_.notify_all();
        done_.wait_for(lock, std::chrono::duration<double>(longest_wait),
                       [this, before] { return closed_ || num_served_ != before; });
        num_working_ += 1;
    }
    sequence.plan(history);
}

std::size_t Scheduler::chunk(const Decoder & decoder) {
    const std::lock_guard lock(mutex_);
    const std::size_t num_generating = num_in_rounds();
    const std::size_t num_prompts = std::max<std::size_t>(1, seats_.size() - num_generating);
    std::size_t most = decoder.n_batch();
    if (num_generating > 0) {
        const double seconds = served_by(decoder).token_seconds;
        most = seconds > 0.0 ? static_cast<std::size_t>(prompt_share / seconds) : first_chunk;
        most = std::min(most, decoder.n_batch() / 2);  // the others' tokens fit beside it
    }
    return std::clamp(most / num_prompts, std::min(least_chunk, decoder.n_batch()), decoder.n_batch());
}

void Scheduler::begin_round(Seat & seat) {
    const std::lock_guard lock(mutex_);
    seat.generating = true;
}

std::size_t Scheduler::num_in_rounds() const {
    return static_cast<std::size_t>(std::count_if(seats_.begin(), seats_.end(), [](const Seat * seat) {
        return seat->generating && seat->state != Seat::State::late;
    }));
}

void Scheduler::share_costs(Pace & pace) {
    const std::lock_guard lock(mutex_);
    pace.share(num_in_rounds(), served_[0].costs, served_.size() > 1 ? &served_[1].costs : nullptr);
}

Scheduler::Counters Scheduler::counters() {
    const std::lock_guard lock(mutex_);
    return counters_;
}

std::size_t Scheduler::num_generating() {
    const std::lock_guard lock(mutex_);
    return num_in_rounds();
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
        if (wants_.empty()) {
            work_.wait(lock, [this] { return closed_ || !wants_.empty(); });
            idle_since_ = now_seconds();
        } else if (!is_ready(now_seconds())) {
            work_.wait_for(lock, std::chrono::duration<double>(num_working_ > 0 ? longest_wait : patience / 4.0));
        } else {
            const std::vector<Want *> group = next_group();
            counters_.waiting_seconds += now_seconds() - idle_since_;
            lock.unlock();
            serve(group);
            lock.lock();
            num_served_ += 1;
            num_working_ += group.size();
            for (Want * want : group) {
                want->is_done = true;
            }
            idle_since_ = now_seconds();
            done_.notify_all();
        }
    }
    for (Want * want : wants_) {
        want->error = std::make_exception_ptr(closed());
        want->is_done = true;
        num_working_ += 1;
    }
    wants_.clear();
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
        if (want->addition.count <= room) {
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

void Scheduler::serve(const std::vector<Want *> & group) {
    if (const std::exception_ptr error = try_together(group)) {
        for (Want * want : group) {
            want->error = group.size() == 1 ? error : try_together({want});
        }
    }
}

void Scheduler::observe(Served & served, const std::vector<Want *> & group, double seconds) {
    std::size_t num_tokens = 0;
    bool has_prompt = false;
    for (const Want * want : group) {
        num_tokens += want->addition.count;
        has_prompt = has_prompt || is_prompt(want->addition);
    }
    if (!has_prompt) {
        served.costs.observe(num_tokens, seconds);
    } else if (num_tokens >= least_chunk) {
        const double each = seconds / static_cast<double>(num_tokens);
        served.token_seconds += (served.token_seconds == 0.0 ? 1.0 : forgetting) * (each - served.token_seconds);
    }
    counters_.decode_seconds += seconds;
    if (&served == &target()) {
        counters_.num_batches += 1;
        counters_.most_texts = std::max(counters_.most_texts, group.size());
        counters_.num_tokens += num_tokens;
    }
}

}  // namespace specllama
