// Who gives way where the cache of many texts is full ("preemption by recomputation": Kwon et al. 2023, section 4.5).
//
// First go the cells that free slots keep for texts to come. Then a text gives up all of its cells, is paused, and is
// decoded anew when there is room again.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "llama/sequence.hpp"
#include "loop/scheduled_text.hpp"

namespace specllama {

// Nothing here is called while one of the decoders decodes.
class Room {
public:
    using Texts = std::vector<ScheduledText *>;

    explicit Room(std::vector<std::shared_ptr<Decoder>> decoders) : decoders_(std::move(decoders)) {}

    // Whether so many more tokens fit into a decoder's cache.
    bool has_room(Decoder & decoder, std::size_t count) const;

    // Makes some room in a decoder whose cache is full: of a free slot, or of a text, which is paused then. Whether
    // there was any to be made.
    bool make(Decoder & decoder, const Texts & texts);

    // The paused text that goes on next; null if none waits for that.
    static ScheduledText * oldest_paused(const Texts & texts);
    // Whether it may go on: what it held fits beside the others, or no other text is expected. A text that has been
    // away since before `since` is not expected.
    bool may_resume(const ScheduledText & paused, const Texts & texts, double since) const;
    // Pauses the younger ones whose prompts are being decoded: they would take the room that others leave.
    void hold_back(const Texts & texts, const ScheduledText & paused);

    // The sequence of a text in decoder number k; null if it has none there.
    Sequence * sequence(const ScheduledText & text, std::size_t k) const;
    // How often a text was paused.
    std::size_t num_pauses() const { return num_pauses_; }

private:
    bool clear_free(Decoder & decoder, const Texts & texts);
    void pause(ScheduledText & text);
    bool fits(const ScheduledText & paused, const Texts & texts) const;

    std::vector<std::shared_ptr<Decoder>> decoders_;
    std::size_t num_pauses_ = 0;
};

}  // namespace specllama
