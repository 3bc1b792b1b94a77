// What the texts' own threads do in a scheduler: they come and go, ask for decodes, and wait for room.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "llama/clock.hpp"
#include "loop/scheduler.hpp"
#include "pacing/pace.hpp"

namespace specllama {

namespace {

// Seconds that generating texts wait for one chunk of another text's prompt.
constexpr double prompt_share = 0.25;
constexpr std::size_t first_chunk = 64;  // tokens of a prompt, while their cost is unknown

// When this object goes out of scope, it sets the sequences' counters back to their values before a paused text was
// restored. Tokens that are decoded again are not the work of a round, and tokens that are borrowed again are not a
// reused prompt.
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

}  // namespace

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
        const bool is_working = text.state == ScheduledText::State::working;  // otherwise the text was paused
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
    bool share(Sequence & cache, const std::vector<int32_t> & history) override {
        return scheduler_->share(cache, history);
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

// Decodes for a text. Where the cache is full, texts are paused (see CacheRoom); this text may be one of them.
void Scheduler::decode(ScheduledText & text, const Sequence::Addition & addition) {
    while (!try_decode(text, addition)) {
        restore(text);
    }
}

// Decodes once. Returns false if the text was paused instead. Where a batch of several texts fails, each text is
// decoded alone; only the texts that fail again get the error.
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
        num_working_ -= 1;  // the scheduler's thread adds the text again, so the text never counts as away
        work_.notify_all();
        done_.wait(lock, [&want] { return want.is_done; });
    }
    if (want.error) {
        std::rethrow_exception(want.error);
    }
    return !want.is_paused;
}

// Waits until there is room for a paused text, and decodes the text's tokens again.
void Scheduler::restore(ScheduledText & text) {
    Uncounted uncounted;
    for (std::size_t k = 0; k < text.held.size(); ++k) {
        if (Sequence * cache = room_.sequence(text, k)) {
            uncounted.add(*cache);
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
        if (text.state != ScheduledText::State::paused) {  // the text was resumed meanwhile
            text.state = ScheduledText::State::paused;
            num_working_ -= 1;
        }
        text.is_here = false;
        throw;
    }
    text.is_here = false;
}

// Decodes the text's tokens again. Returns false if the text was paused again.
bool Scheduler::try_restore(ScheduledText & text) {
    for (std::size_t k = 0; k < text.held.size(); ++k) {
        Sequence * cache = room_.sequence(text, k);
        if (cache == nullptr) {
            continue;
        }
        try {
            if (!try_restore(text, *cache, text.held[k])) {
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

bool Scheduler::try_restore(ScheduledText & text, Sequence & cache, const std::vector<int32_t> & held) {
    while (cache.tokens().size() < held.size()) {
        text.ask();
        if (!share(cache, held)) {
            continue;
        }
        const std::size_t done = cache.tokens().size();
        const std::size_t count = std::min(held.size() - done, chunk(text, cache.decoder()));
        if (!try_decode(text, {{held.data() + done, count, count}, &cache})) {
            return false;
        }
    }
    cache.save(1);  // the copy to which the text's round goes back was lost, too
    return true;
}

bool Scheduler::share(Sequence & cache, const std::vector<int32_t> & history) {
    cache.borrow(history);
    if (cache.plan(history)) {
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
    // A text that decodes its draft's prompt between two rounds is not counted: it does not wait for itself.
    const std::size_t num_waiting = num_in_rounds() - (text.generating && text.shares_batches() ? 1 : 0);
    const auto is_prompt = [](const ScheduledText * other) {
        return !other->generating && other->state != ScheduledText::State::paused;
    };
    const auto num_prompts = static_cast<std::size_t>(std::count_if(texts_.begin(), texts_.end(), is_prompt));
    std::size_t most = decoder.n_batch();
    if (num_waiting > 0) {
        const double seconds = served_by(decoder).token_seconds;
        most = seconds > 0.0 ? static_cast<std::size_t>(prompt_share / seconds) : first_chunk;
        most = std::min(most, decoder.n_batch() / 2);  // the others' tokens fit beside the chunk
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
    if (target().decoder->wants_equal_lengths()) {
        others = 0;  // each of them brings as many tokens as this text
    }
    pace.share(texts, others, target().costs, num_drawing, drafts);
}

}  // namespace specllama
