// Decodes many texts together ("continuous batching": Yu et al. 2022, Orca).
//
// Each text runs the loop of speculator.hpp in a thread of its own. One more thread, the scheduler's, decodes for all:
// as soon as no text is at work, it decodes in one batch the tokens that the texts ask for. The drafts' batches come
// first, so that the target's batch holds the drafts of all texts. A text joins with its next call, and leaves when its
// generation ends.
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
    // Totals since the scheduler was made.
    struct Counters {
        std::size_t num_batches = 0;   // batches of the target
        std::size_t num_tokens = 0;    // tokens in the target's batches
        std::size_t most_texts = 0;    // in one batch of the target
        std::size_t num_pauses = 0;    // how often a text gave its cells to others
        double decode_seconds = 0.0;   // of the target and the drafts
        double waiting_seconds = 0.0;  // how long waiting texts waited because others were at work
    };

    // `drafts`: the decoders of the drawing drafters, in their order. From now on only this object decodes the
    // sequences of these decoders and of the target.
    Scheduler(const std::shared_ptr<Decoder> & target, const std::vector<std::shared_ptr<Decoder>> & drafts);
    ~Scheduler();
    Scheduler(const Scheduler &) = delete;
    Scheduler & operator=(const Scheduler &) = delete;

    // Ends the decode that is running. Texts that wait for a decode, or ask for one later, get ClosedError. Returns
    // when no text is at work any more; the contexts may be freed then.
    void close();

    // The Decoding for the text whose sequences have this seq_id. The Decoding keeps the scheduler alive.
    static std::unique_ptr<Decoding> text(std::shared_ptr<Scheduler> scheduler, int32_t id);

    Counters counters();
    // How many texts take part in the drafts' batches now.
    std::size_t num_drawing();
    // How many texts are in their rounds now.
    std::size_t num_generating();
    // T(n), the seconds of a batch of n tokens: the target's, then each draft's.
    std::vector<CostModel> costs();
    // Restores costs that were measured earlier, {n: seconds}, in the order of costs(). There may be fewer than
    // decoders.
    void restore_costs(const std::vector<std::map<std::size_t, double>> & seconds);

private:
    static constexpr double longest_wait_ = 0.1;     // seconds: a thread that waits looks again, even if not notified
    static constexpr std::size_t least_chunk_ = 16;  // tokens of a prompt: smaller chunks are hardly faster

    static ClosedError closed();

    class Text;
    // A call of a text: until it returns, the text's thread counts as at work. Between two calls of a generation the
    // text is away. Other texts wait a little for it, so that all texts stay in one batch, but not for a caller that
    // takes long between two calls.
    class Visit;

    struct Want {
        Sequence::Addition addition{};
        ScheduledText * text = nullptr;
        bool is_alone = false;  // decoded without others, because a batch with others failed
        bool is_done = false;
        bool is_paused = false;  // the text was paused; nothing was decoded
        std::exception_ptr error;
    };
    // A decoder and the costs of its batches.
    struct Served {
        std::shared_ptr<Decoder> decoder;
        CostModel costs;
        double token_seconds = 0.0;  // seconds for each token of a prompt's batches
    };

    void run();
    bool is_ready(double now);
    std::vector<Want *> next_group();
    static Decoder & decoder_of(const std::vector<Want *> & group);
    static std::size_t num_tokens(const std::vector<Want *> & group);
    static std::size_t longest(const std::vector<Want *> & group);
    static bool is_one_batch(const std::vector<Want *> & group);
    void serve(std::vector<Want *> group);
    bool give_way(std::vector<Want *> & group);
    void finish(const std::vector<Want *> & group);
    void take_paused(std::vector<Want *> & wants);
    void resume_one();
    void wait_for_wants(std::unique_lock<std::mutex> & lock);
    std::exception_ptr try_together(const std::vector<Want *> & group);
    void decode(ScheduledText & text, const Sequence::Addition & addition);
    bool try_decode(ScheduledText & text, const Sequence::Addition & addition);
    bool share(Sequence & cache, const std::vector<int32_t> & history);
    std::size_t chunk(const ScheduledText & text, const Decoder & decoder);
    void begin_round(ScheduledText & text);
    void share_costs(const ScheduledText & text, Pace & pace);
    void restore(ScheduledText & text);
    void wait_for_room(ScheduledText & text);
    bool try_restore(ScheduledText & text);
    bool try_restore(ScheduledText & text, Sequence & cache, const std::vector<int32_t> & held);
    void observe(Served & served, const std::vector<Want *> & group, double seconds);
    Served & target() { return served_[0]; }
    Served & served_by(const Decoder & decoder);
    std::size_t num_in_rounds() const;
    void enter(ScheduledText & text);
    void start(ScheduledText & text);
    void come_back(ScheduledText & text, bool under_way);
    void leave(ScheduledText & text, bool under_way);

    std::mutex mutex_;
    std::condition_variable work_;  // notifies this object's thread
    std::condition_variable done_;  // notifies the texts' threads
    std::vector<Served> served_;    // the target, then the drafts
    CacheRoom room_;
    std::vector<ScheduledText *> texts_;  // those whose state is not `out`
    std::uint64_t num_texts_ = 0;         // how many texts have begun
    std::size_t num_inside_ = 0;          // calls of texts that have not returned
    std::vector<Want *> wants_;
    std::size_t num_working_ = 0;
    std::size_t num_served_ = 0;  // groups decoded so far
    double idle_since_ = 0.0;     // since when a text waits while others are at work
    // Atomic, because it is also read while a decode holds the memory's mutex, and mutex_ must not be locked then.
    std::atomic<bool> closed_{false};
    std::function<void()> poll_;
    Counters counters_;
    std::thread thread_;
};

}  // namespace specllama
