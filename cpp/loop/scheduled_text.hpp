// Where one of many texts stands with their scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace specllama {

struct ScheduledText {
    enum class State {
        out,      // nothing is under way
        working,  // its thread is at work, or waits for another text's prompt
        waiting,  // its thread waits for a decode
        away,     // between two calls of a generation
        late,     // away for so long that nobody waits for it, or at work that takes long
        paused,   // its cells were given to others: see Room
    };

    bool is_between_calls() const { return state == State::away || state == State::late; }
    // Whether its tokens are in the next batches, as far as one can tell.
    bool shares_batches() const { return state != State::late && state != State::paused; }
    // Asks whether the wait is to end: what `poll` throws ends it.
    void ask() const {
        if (poll != nullptr && *poll) {
            (*poll)();
        }
    }

    // Whether it takes part in the draft's batches, as far as one can tell: in its last round, or already in this one.
    // A text that begins is taken to do so.
    bool is_drawing() const { return shares_batches() && (drew || draws); }

    // Its round wants this decoded, by the target or by the draft. With the target's batch the round ends.
    void asks(std::size_t count, bool of_target) {
        if (of_target) {
            drew = draws;
            brought = count;
        }
        draws = !of_target;
    }
    void end() {
        generating = draws = false;
        drew = true;
        brought = 1;
        held.clear();
    }

    State state = State::out;
    bool is_inside = false;  // its thread is in a call
    double away_since = 0.0;
    bool generating = false;
    bool drew = true;                              // in its last round, the draft decoded for it
    bool draws = false;                            // in this one
    std::size_t brought = 1;                       // tokens to the batch of its last round
    int32_t id = -1;                               // the seq_id of its sequences
    std::uint64_t number = 0;                      // smaller: under way for longer
    const std::function<void()> * poll = nullptr;  // called now and then while it is paused
    // Of a paused one:
    bool is_here = false;                    // its thread waits to go on
    std::vector<std::vector<int32_t>> held;  // the tokens of its sequences, by decoder
    std::size_t wanted = 0;                  // tokens that it was about to decode
};

}  // namespace specllama
