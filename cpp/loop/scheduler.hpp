// Many texts at once, decoded together ("continuous batching": Yu et al. 2022, Orca).
//
// Each text runs the loop of speculator.hpp in a thread of its own. What the texts want to have decoded is decoded in
// one batch by one more thread, as soon as no text is at work any more. First come the draft's rounds, so that the
// target's batch has what all texts have drafted. A text joins with its next call, and leaves by ending.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "llama/decoding.hpp"
#include "llama/errors.hpp"
#include "llama/sequence.hpp"
#include "loop/preemption.hpp"
#include "loop/scheduled_text.hpp"
#include "pacing/cost_model.hpp"

namespace specllama {

class Pace;

class Scheduler {
public:
    // What has been done since the beginning.
    struct Counters {
        std::size_t num_batches = 0;   // of the target
        std::size_t num_tokens = 0;    // in them
        std::size_t most_texts = 0;    // in one of them
        std::size_t num_pauses = 0;    // of texts that gave their cells to others
        double decode_seconds = 0.0;   // of all
        double waiting_seconds = 0.0;  // for texts that were at work, while others waited
    };

    // `drafts`: of the drafters that draw, in their order. The sequences of all are decoded by this object from now on.
    Scheduler(const std::shared_ptr<Decoder> & target, const std::vector<std::shared_ptr<Decoder>> & drafts);
    ~Scheduler();
    Scheduler(const Scheduler &) = delete;
    Scheduler & operator=(const Scheduler &) = delete;

    // Ends the decode that is running. Texts that wait for one, and texts that ask later, get ClosedError. Returns when
    // no text is at work any more: their contexts may be freed then.
    void close();

    // Who decodes for the text whose sequences have this seq_id. It keeps the scheduler.
    static std::unique_ptr<Decoding> text(std::shared_ptr<Scheduler> scheduler, int32_t id);

    Counters counters();
    // Texts that take part in drafts' batches, now.
    std::size_t num_drawing();
    // Texts in the rounds, now.
    std::size_t num_generating();
    // T(n) in seconds of the target, then of each draft.
    std::vector<CostModel> costs();
    // Of as many of them as are given.
    void restore_costs(const std::vector<std::map<std::size_t, double>> & seconds);

private:
    static constexpr double longest_wait_ = 0.1;     // seconds between two looks at what changes without a notice
    static constexpr std::size_t least_chunk_ = 16;  // tokens of a prompt: fewer are hardly faster

    static ClosedError closed();

    class Text;
    // A text's thread is at work, during one call. Between the calls of a generation it is away: the others wait a
    // little for it, so that texts stay in one batch, but not for a reader who takes their time.
    class Visit;

    struct Want {
        Sequence::Addition addition{};
        ScheduledText * text = nullptr;
        bool is_alone = false;  // decoded without others: something failed among them
        bool is_done = false;
        bool is_paused = false;  // instead of decoded
        std::exception_ptr error;
    };
    // What is known of a decoder.
    struct Served {
        std::shared_ptr<Decoder> decoder;
        CostModel costs;
        double token_seconds = 0.0;  // in batches of a prompt
    };

    void run();
    bool is_ready(double now);
    std::vector<Want *> next_group();
    static Decoder & decoder_of(const std::vector<Want *> & group);
    static std::size_t num_tokens(const std::vector<Want *> & group);
    void serve(std::vector<Want *> group);
    bool give_way(std::vector<Want *> & group);
    void finish(const std::vector<Want *> & group);
    void take_paused(std::vector<Want *> & wants);
    void resume_one();
    void wait_for_wants(std::unique_lock<std::mutex> & lock);
    std::exception_ptr try_together(const std::vector<Want *> & group);
    void decode(ScheduledText & text, const Sequence::Addition & addition);
    bool try_decode(ScheduledText & text, const Sequence::Addition & addition);
    bool share(Sequence & own, const std::vector<int32_t> & history);
    std::size_t chunk(const ScheduledText & text, const Decoder & decoder);
    void begin_round(ScheduledText & text);
    void share_costs(const ScheduledText & text, Pace & pace);
    void restore(ScheduledText & text);
    void wait_for_room(ScheduledText & text);
    bool try_restore(ScheduledText & text);
    bool try_restore(ScheduledText & text, Sequence & own, const std::vector<int32_t> & held);
    void observe(Served & served, const std::vector<Want *> & group, double seconds);
    Served & target() { return served_[0]; }
    Served & served_by(const Decoder & decoder);
    std::size_t num_in_rounds() const;
    void enter(ScheduledText & text);
    void start(ScheduledText & text);
    void come_back(ScheduledText & text, bool under_way);
    void step_aside(ScheduledText & text);
    void step_back(ScheduledText & text);
    void leave(ScheduledText & text, bool under_way);

    std::mutex mutex_;
    std::condition_variable work_;  // for this object's thread
    std::condition_variable done_;  // for the texts'
    std::vector<Served> served_;    // the target, then the drafts
    Room room_;
    std::vector<ScheduledText *> texts_;  // that are not out
    std::uint64_t num_texts_ = 0;         // since the beginning
    std::size_t num_inside_ = 0;          // calls of texts
    std::vector<Want *> wants_;
    std::size_t num_working_ = 0;
    std::size_t num_served_ = 0;  // groups
    double idle_since_ = 0.0;     // a text waits, and others are at work
    // Read within a decode, too, which holds the memory's mutex: mutex_ is never taken after that.
    std::atomic<bool> closed_{false};
    std::function<void()> poll_;
    Counters counters_;
    std::thread thread_;
};

}  // namespace specllama
