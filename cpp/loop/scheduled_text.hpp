// The state of one text of a scheduler, which decodes many texts together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace specllama {

struct ScheduledText {
    enum class State {
        out,      // the text has no generation
        working,  // its thread is at work, or waits while another text decodes the prompt that both share
        waiting,  // its thread waits for a decode
        away,     // between two calls of a generation
        late,     // away for so long that other texts do not wait for it
        paused,   // its cells were given to other texts: see CacheRoom
    };

    bool is_between_calls() const { return state == State::away || state == State::late; }
    // Whether the text is expected to have tokens in the next batches.
    bool shares_batches() const { return state != State::late && state != State::paused; }
    // Calls `poll`, which may end a wait by throwing.
    void ask() const {
        if (poll != nullptr && *poll) {
            (*poll)();
        }
    }

    // Whether the text is expected to take part in the draft's batches: it did so in its last round, or does so in this
    // one, or it has no round yet.
    bool is_drawing() const { return shares_batches() && (drew || draws); }

    // The text's round asks the target or the draft to decode `count` tokens. The round ends with the target's batch.
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
    bool is_inside = false;  // its thread is in a call (see Scheduler::Visit)
    double away_since = 0.0;
    bool generating = false;
    bool drew = true;                              // the draft decoded for the text in its last round
    bool draws = false;                            // the draft decodes for the text in this round
    std::size_t brought = 1;                       // number of its tokens in the target's last batch
    int32_t id = -1;                               // the seq_id of its sequences
    std::uint64_t number = 0;                      // a smaller number means that the text began earlier
    const std::function<void()> * poll = nullptr;  // called now and then while it is paused
    // These are for a paused text:
    bool is_here = false;                    // its thread waits to go on
    std::vector<std::vector<int32_t>> held;  // the tokens that its sequences held, by decoder
    std::size_t wanted = 0;                  // tokens that it was about to decode
};

}  // namespace specllama
