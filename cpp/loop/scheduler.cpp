// Decodes many texts together.
#include "loop/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "llama/clock.hpp"
#include "llama/errors.hpp"
#include "pacing/pace.hpp"

namespace specllama {

namespace {

// Seconds that generating texts wait for one chunk of another text's prompt.
constexpr double prompt_share = 0.25;
constexpr std::size_t first_chunk = 64;  // tokens of a prompt, while their cost is unknown
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

// Takes back, when it goes out of scope, what restoring a paused text added to the sequences' counters: tokens that are
// decoded again are no round's work, and borrowed tokens are no reused prompt.
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
        // With a sliding window, cells that one text no longer needs go to another text. The first text could not roll
        // back.
        if (served.decoder->rollback() != Rollback::seq_rm) {
            throw std::invalid_argument("the memory of the " + served.decoder->name() +
                                        " is recurrent or a sliding window: its texts cannot be decoded together");
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

void Scheduler::enter(ScheduledText & text) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        texts_.erase(std::remove(texts_.begin(), texts_.end(), &text), texts_.end());
        throw closed();
    }
    if (text.is_inside) {
        throw BusyError("this text is generating in another thread: wait for it, or take another slot");
    }
    text.is_inside = true;
    num_inside_ += 1;
    if (text.state == ScheduledText::State::out) {
        texts_.push_back(&text);
        text.number = ++num_texts_;
    }
    if (text.state != ScheduledText::State::paused) {
        start(text);
    }
}

void Scheduler::start(ScheduledText & text) {
    text.state = ScheduledText::State::working;
    num_working_ += 1;
}

void Scheduler::leave(ScheduledText & text, bool under_way) {
    {
        const std::lock_guard lock(mutex_);
        text.is_inside = false;
        num_inside_ -= 1;
        const bool is_working =
            text.state == ScheduledText::State::working;  // otherwise it was paused, or has stepped aside
        num_working_ -= is_working ? 1 : 0;
        if (!under_way) {
            text.state = ScheduledText::State::out;
            text.end();
            texts_.erase(std::remove(texts_.begin(), texts_.end(), &text), texts_.end());
        } else if (is_working) {
            text.state = ScheduledText::State::away;
            text.away_since = now_seconds();
        }
    }
    work_.notify_all();
}

class Scheduler::Visit {
public:
    // under_way: whether the generation goes on. It is read again in the destructor. poll: called now and then while
    // the text is paused; it ends the wait by throwing.
    Visit(Scheduler & scheduler, ScheduledText & text, const bool & under_way, const std::function<void()> * poll)
        : scheduler_(scheduler), text_(text), under_way_(under_way) {
        scheduler_.enter(text_);
        text_.poll = poll;
        try {
            scheduler_.come_back(text_, under_way_);
        } catch (...) {
            scheduler_.leave(text_, under_way_);
            throw;
        }
    }
    ~Visit() { scheduler_.leave(text_, under_way_); }
    Visit(const Visit &) = delete;
    Visit & operator=(const Visit &) = delete;

private:
    Scheduler & scheduler_;
    ScheduledText & text_;
    const bool & under_way_;
};

class Scheduler::Text final : public Decoding {
public:
    Text(std::shared_ptr<Scheduler> scheduler, int32_t id) : scheduler_(std::move(scheduler)) { text_.id = id; }
    ~Text() override {
        if (text_.state != ScheduledText::State::out) {
            try {
                visit({}, false, nullptr);      // to leave the scheduler
            } catch (const std::exception &) {  // NOLINT(bugprone-empty-catch)
                // The scheduler is closed: nothing waits for this text.
            }
        }
    }
    std::shared_ptr<void> visit(const std::vector<Sequence *> & /*sequences*/, const bool & under_way,
                                const std::function<void()> * poll) override {
        return std::make_shared<Visit>(*scheduler_, text_, under_way, poll);
    }
    void decode(const Sequence::Addition & addition) override { scheduler_->decode(text_, addition); }
    std::size_t chunk(const Decoder & decoder) override { return scheduler_->chunk(text_, decoder); }
    bool share(Sequence & own, const std::vector<int32_t> & history) override {
        return scheduler_->share(own, history);
    }
    void begin_round() override { scheduler_->begin_round(text_); }
    void share_costs(Pace & pace) override { scheduler_->share_costs(text_, pace); }

private:
    std::shared_ptr<Scheduler> scheduler_;
    ScheduledText text_;
};

std::unique_ptr<Decoding> Scheduler::text(std::shared_ptr<Scheduler> scheduler, int32_t id) {
    return std::make_unique<Text>(std::move(scheduler), id);
}

// Restores a text that was paused while it was away.
void Scheduler::come_back(ScheduledText & text, bool under_way) {
    {
        const std::lock_guard lock(mutex_);
        if (text.state != ScheduledText::State::paused) {
            return;
        }
        if (!under_way) {
            start(text);
            return;
        }
    }
    restore(text);
}

// Decodes for a text. Where the cache is full, texts are paused (see Room); this text may be one of them.
void Scheduler::decode(ScheduledText & text, const Sequence::Addition & addition) {
    while (!try_decode(text, addition)) {
        restore(text);
    }
}

// Returns false if the text was paused instead. Where a batch of several texts fails, each text is decoded alone; only
// the texts that fail again get the error.
bool Scheduler::try_decode(ScheduledText & text, const Sequence::Addition & addition) {
    addition.sequence->refuse_bad(addition);
    Want want;
    want.addition = addition;
    want.text = &text;
    {
        std::unique_lock lock(mutex_);
        if (closed_) {
            throw closed();
        }
        text.state = ScheduledText::State::waiting;
        text.wanted = addition.count;
        if (addition.first_output < addition.count) {  // a round's batch, not a prompt's chunk
            text.asks(addition.count, &served_by(addition.sequence->decoder()) == &target());
        }
        wants_.push_back(&want);
        num_working_ -= 1;  // the scheduler's thread adds it again, so this text never counts as away
        work_.notify_all();
        done_.wait(lock, [&want] { return want.is_done; });
    }
    if (want.error) {
        std::rethrow_exception(want.error);
    }
    return !want.is_paused;
}

// Waits until there is room for a paused text, and decodes again what it held.
void Scheduler::restore(ScheduledText & text) {
    Uncounted uncounted;
    for (std::size_t k = 0; k < text.held.size(); ++k) {
        if (Sequence * own = room_.sequence(text, k)) {
            uncounted.add(*own);
        }
    }
    try {
        do {
            wait_for_room(text);
        } while (!try_restore(text));
    } catch (...) {
        const std::lock_guard lock(mutex_);
        if (text.state != ScheduledText::State::paused) {
            text.held.clear();  // the text's loop will find that the memory holds less than it should
        }
        throw;
    }
    const std::lock_guard lock(mutex_);
    text.held.clear();
}

void Scheduler::wait_for_room(ScheduledText & text) {
    std::unique_lock lock(mutex_);
    text.is_here = true;
    work_.notify_all();
    try {
        while (text.state == ScheduledText::State::paused) {
            if (closed_) {
                throw closed();
            }
            done_.wait_for(lock, std::chrono::duration<double>(longest_wait_),
                           [this, &text] { return closed_ || text.state != ScheduledText::State::paused; });
            lock.unlock();
            text.ask();
            lock.lock();
        }
    } catch (...) {
        if (!lock.owns_lock()) {
            lock.lock();
        }
        if (text.state != ScheduledText::State::paused) {  // it was resumed meanwhile
            text.state = ScheduledText::State::paused;
            num_working_ -= 1;
        }
        text.is_here = false;
        throw;
    }
    text.is_here = false;
}

// Returns false if the text was paused again.
bool Scheduler::try_restore(ScheduledText & text) {
    for (std::size_t k = 0; k < text.held.size(); ++k) {
        Sequence * own = room_.sequence(text, k);
        if (own == nullptr) {
            continue;
        }
        try {
            if (!try_restore(text, *own, text.held[k])) {
                return false;
            }
        } catch (const DecodeError &) {
            if (k == 0) {
                throw;
            }
            // The draft catches up by itself, or drafting stops.
        }
    }
    return true;
}

bool Scheduler::try_restore(ScheduledText & text, Sequence & own, const std::vector<int32_t> & held) {
    while (own.tokens().size() < held.size()) {
        text.ask();
        if (!share(own, held)) {
            continue;
        }
        const std::size_t done = own.tokens().size();
        const std::size_t count = std::min(held.size() - done, chunk(text, own.decoder()));
        if (!try_decode(text, {{held.data() + done, count, count}, &own})) {
            return false;
        }
    }
    return true;
}

bool Scheduler::share(Sequence & own, const std::vector<int32_t> & history) {
    own.borrow(history);
    if (own.plan(history)) {
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

std::size_t Scheduler::chunk(const ScheduledText & text, const Decoder & decoder) {
    const std::lock_guard lock(mutex_);
    // A text may decode its draft's prompt between two rounds; it does not wait for itself.
    const std::size_t num_waiting = num_in_rounds() - (text.generating && text.shares_batches() ? 1 : 0);
    const auto is_prompt = [](const ScheduledText * other) {
        return !other->generating && other->state != ScheduledText::State::paused;
    };
    const auto num_prompts = static_cast<std::size_t>(std::count_if(texts_.begin(), texts_.end(), is_prompt));
    std::size_t most = decoder.n_batch();
    if (num_waiting > 0) {
        const double seconds = served_by(decoder).token_seconds;
        most = seconds > 0.0 ? static_cast<std::size_t>(prompt_share / seconds) : first_chunk;
        most = std::min(most, decoder.n_batch() / 2);  // the others' tokens fit beside it
    }
    return std::clamp(most / std::max<std::size_t>(1, num_prompts), std::min(least_chunk_, decoder.n_batch()),
                      decoder.n_batch());
}

void Scheduler::begin_round(ScheduledText & text) {
    const std::lock_guard lock(mutex_);
    text.generating = true;
}

std::size_t Scheduler::num_in_rounds() const {
    return static_cast<std::size_t>(std::count_if(texts_.begin(), texts_.end(), [](const ScheduledText * text) {
        return text->generating && text->shares_batches();
    }));
}

void Scheduler::share_costs(const ScheduledText & text, Pace & pace) {
    const std::lock_guard lock(mutex_);
    std::size_t texts = 1;
    std::size_t others = 0;
    std::size_t num_drawing = 1;
    for (const ScheduledText * other : texts_) {
        // Texts whose prompts are being decoded count, too: they will soon share the batches.
        if (other != &text && other->shares_batches()) {
            texts += 1;
            others += other->brought;
            num_drawing += other->is_drawing() ? 1 : 0;
        }
    }
    std::vector<const CostModel *> drafts;
    std::transform(served_.begin() + 1, served_.end(), std::back_inserter(drafts),
                   [](const Served & served) { return &served.costs; });
    pace.share(texts, others, target().costs, num_drawing, drafts);
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

std::size_t Scheduler::num_tokens(const std::vector<Want *> & group) {
    std::size_t count = 0;
    for (const Want * want : group) {
        count += want->addition.count;
    }
    return count;
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
    if (is_paused()) {  // no notification comes when the other texts have been away long enough
        work_.wait_for(lock, std::chrono::duration<double>(longest_wait_));
    } else {
        work_.wait(lock, [&] { return closed_ || !wants_.empty() || is_paused(); });
    }
}

// Resumes a paused text if there is room for it. If there is none, no younger text may begin.
void Scheduler::resume_one() {
    ScheduledText * text = Room::oldest_paused(texts_);
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

// Chooses the wants to decode next. A draft's round comes first, so that the target's batch holds what all texts have
// drafted. Then comes the want that has waited longest, so that every text has its turn. As many wants for the same
// decoder and layer as fit go along, rounds before prompts.
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
    std::size_t room = decoder->n_batch();
    for (Want * want : waiting) {
        // After a failure in a batch, each want is decoded alone, which shows which of them fail.
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

// Decodes the group, pauses some of its texts, or gives them errors. Wants that have to be tried again are put back.
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
        // There was room by our count. Either an older llama.cpp needs contiguous cells, or a text that is at work took
        // some meanwhile: it can be paused once it waits.
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

// Makes some room for the group; texts of the group may be paused for that. Returns whether it made any.
bool Scheduler::give_way(std::vector<Want *> & group) {
    if (!room_.make(decoder_of(group), texts_)) {
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
    if (is_warm && (!has_prompt || &served != &target())) {  // whether a draft's prompt pays depends on these costs
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
