// Decodes many texts together: the thread that decodes.
#include "loop/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>

#include "llama/clock.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

// Seconds to wait for a text that is away: more than Python takes for eight texts.
constexpr double patience = 0.02;
// Seconds after which a paused text no longer waits for a text that is away.
constexpr double absence = 1.0;
constexpr double forgetting = 0.2;  // weight of the newest batch in the cost of a prompt's token

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

std::vector<std::shared_ptr<Decoder>> decoders_of(const std::shared_ptr<Decoder> & target,
                                                  const std::vector<std::shared_ptr<Decoder>> & drafts) {
    std::vector<std::shared_ptr<Decoder>> all{target};
    all.insert(all.end(), drafts.begin(), drafts.end());
    return all;
}

}  // namespace

ClosedError Scheduler::closed() {
    return ClosedError("the texts' contexts are closed: this Llama was closed, or opened anew");
}

Scheduler::Scheduler(const std::shared_ptr<Decoder> & target, const std::vector<std::shared_ptr<Decoder>> & drafts)
    : room_(decoders_of(target, drafts)) {
    for (const auto & decoder : decoders_of(target, drafts)) {
        served_.push_back({decoder, {}, 0.0});
    }
    poll_ = [this] {
        if (closed_) {
            throw closed();
        }
    };
    for (const Served & served : served_) {
        if (!served.decoder->holds_several()) {
            throw std::invalid_argument("the memory of the " + served.decoder->name() +
                                        " is recurrent, and this llama.cpp cannot copy its state: its texts cannot be "
                                        "decoded together");
        }
    }
    for (const Served & served : served_) {
        served.decoder->set_shared(true);
        served.decoder->ask(&poll_);
    }
    thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
    close();
    for (const Served & served : served_) {
        served.decoder->set_shared(false);
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
        std::count_if(texts_.begin(), texts_.end(), [](const ScheduledText * text) { return text->is_drawing(); }));
}

std::vector<CostModel> Scheduler::costs() {
    const std::lock_guard lock(mutex_);
    std::vector<CostModel> all;
    std::transform(served_.begin(), served_.end(), std::back_inserter(all),
                   [](const Served & served) { return served.costs; });
    return all;
}

void Scheduler::restore_costs(const std::vector<std::map<std::size_t, double>> & seconds) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < std::min(seconds.size(), served_.size()); ++i) {
        served_[i].costs.restore(seconds[i]);
    }
}

Scheduler::Served & Scheduler::served_by(const Decoder & decoder) {
    return *std::find_if(served_.begin(), served_.end(),
                         [&decoder](const Served & served) { return served.decoder.get() == &decoder; });
}

// The functions below run in the scheduler's thread.

Decoder & Scheduler::decoder_of(const std::vector<Want *> & group) { return group[0]->addition.sequence->decoder(); }

// How many tokens the batch of a group has.
std::size_t Scheduler::num_tokens(const std::vector<Want *> & group) {
    std::size_t count = 0;
    for (const Want * want : group) {
        count += want->addition.count;
    }
    return decoder_of(group).wants_equal_lengths() ? group.size() * longest(group) : count;
}

std::size_t Scheduler::longest(const std::vector<Want *> & group) {
    std::size_t most = 0;
    for (const Want * want : group) {
        most = std::max(most, want->addition.count);
    }
    return most;
}

// Whether wants can be decoded together. Where the parts must have equal lengths, short ones are padded. One want alone
// always can.
bool Scheduler::is_one_batch(const std::vector<Want *> & group) {
    if (group.size() == 1) {
        return true;
    }
    // After a failure in a batch, each want is decoded alone, which shows which of them fail.
    const auto is_alone = [](const Want * want) { return want->is_alone; };
    const Decoder & decoder = decoder_of(group);
    if (std::any_of(group.begin(), group.end(), is_alone) || num_tokens(group) > decoder.n_batch()) {
        return false;
    }
    const auto is_as_long = [&group](const Want * want) { return want->addition.count == group[0]->addition.count; };
    return !decoder.wants_equal_lengths() || std::all_of(group.begin(), group.end(), is_as_long) ||
           longest(group) <= decoder.num_snapshots() + 1;
}

// Whether the next batch can be decoded: no text is at work, and no text is away that is worth waiting for.
bool Scheduler::is_ready(double now) {
    if (wants_.empty() || num_working_ > 0) {
        return false;
    }
    bool all_here = true;
    for (ScheduledText * text : texts_) {
        if (text->state != ScheduledText::State::away) {
            continue;
        }
        // The wait is measured from when the text went away or when the scheduler became idle, whichever is later.
        if (now - std::max(text->away_since, idle_since_) < patience) {
            all_here = false;
        } else {
            text->state = ScheduledText::State::late;
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
        return std::any_of(texts_.begin(), texts_.end(), [](const ScheduledText * text) { return text->is_here; });
    };
    if (is_paused()) {  // looks again after a while: no notification comes when other texts have been away long
        work_.wait_for(lock, std::chrono::duration<double>(longest_wait_));
    } else {
        work_.wait(lock, [&] { return closed_ || !wants_.empty() || is_paused(); });
    }
}

// Resumes a paused text if there is room for it. If there is none, no younger text may begin.
void Scheduler::resume_one() {
    ScheduledText * text = CacheRoom::oldest_paused(texts_);
    if (text == nullptr) {
        return;
    }
    if (room_.may_resume(*text, texts_, now_seconds() - absence)) {
        start(*text);
    } else {
        room_.hold_back(texts_, *text);
        take_paused(wants_);
    }
    done_.notify_all();
}

// Chooses the wants to decode next. A draft's tokens for a round come first, so that the target's batch holds the
// drafts of all texts. Then comes the want that has waited longest, so that every text has its turn. As many wants for
// the same decoder and layer as fit go along, rounds before prompts.
std::vector<Scheduler::Want *> Scheduler::next_group() {
    const auto decoder_of_want = [](const Want * want) { return &want->addition.sequence->decoder(); };
    const auto drafts = std::find_if(wants_.begin(), wants_.end(), [&](const Want * want) {
        return decoder_of_want(want) != target().decoder.get() && !is_prompt(want->addition);
    });
    const Want * chosen = drafts != wants_.end() ? *drafts : wants_.front();
    const Decoder * decoder = decoder_of_want(chosen);
    std::vector<Want *> waiting;
    std::copy_if(wants_.begin(), wants_.end(), std::back_inserter(waiting), [&](const Want * want) {
        return decoder_of_want(want) == decoder && want->addition.layer == chosen->addition.layer;
    });
    std::stable_partition(waiting.begin() + 1, waiting.end(),
                          [](const Want * want) { return !is_prompt(want->addition); });
    std::vector<Want *> group;
    for (Want * want : waiting) {
        group.push_back(want);
        if (!is_one_batch(group)) {
            group.pop_back();
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
    const bool are_equal = decoder_of(group).wants_equal_lengths();
    for (const Want * want : group) {
        additions.push_back(want->addition);
        additions.back().padding = are_equal ? longest(group) - want->addition.count : 0;
    }
    // llama.cpp moves recurrent states into the order that their texts have in the batch. So that is always the same.
    std::sort(additions.begin(), additions.end(), [](const Sequence::Addition & one, const Sequence::Addition & other) {
        return one.sequence->id() < other.sequence->id();
    });
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

// Decodes the group, pauses some of its texts, or gives them errors. Wants that have to be tried again are put back.
void Scheduler::serve(std::vector<Want *> group) {
    std::unique_lock lock(mutex_);
    while (!group.empty() && !room_.has_room(decoder_of(group).with_memory(), num_tokens(group)) && give_way(group)) {
    }
    if (group.empty()) {
        return;
    }
    lock.unlock();
    const std::exception_ptr error = try_together(group);
    lock.lock();
    if (error && is_no_room(error)) {
        // There was room by our count. Either an older llama.cpp needs contiguous cells, or a text that is at work took
        // some cells meanwhile. That text can be paused once it waits.
        const auto is_working = [](const ScheduledText * text) { return text->state == ScheduledText::State::working; };
        if (give_way(group) || std::any_of(texts_.begin(), texts_.end(), is_working)) {
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

// Makes some room for the group; texts of the group may be paused for that. Returns whether there is more room now.
bool Scheduler::give_way(std::vector<Want *> & group) {
    if (!room_.make(decoder_of(group).with_memory(), texts_)) {
        return false;
    }
    take_paused(wants_);
    take_paused(group);
    return true;
}

// Marks the wants as done. Their texts' threads are at work again.
void Scheduler::finish(const std::vector<Want *> & group) {
    for (Want * want : group) {
        want->is_done = true;
        num_working_ += 1;
        want->text->state = ScheduledText::State::working;
    }
}

// Marks the wants of paused texts as done, and removes them.
void Scheduler::take_paused(std::vector<Want *> & wants) {
    const auto first = std::stable_partition(wants.begin(), wants.end(), [](const Want * want) {
        return want->text->state != ScheduledText::State::paused;
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
    const bool is_warm = served.decoder->was_warm();
    if (is_warm && (!has_prompt || &served != &target())) {  // a draft's prompts count: their cost decides if they pay
        served.costs.observe(count, seconds);
    }
    if (is_warm && has_prompt && count >= least_chunk_) {
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
