// Which text gives up its cells when the cache of many texts is full ("preemption by recomputation": Kwon et al. 2023,
// section 4.5).
//
// First, the cells that free slots keep for later texts are cleared. Then a text gives up all of its cells and is
// paused. It is decoded again when there is room.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "llama/sequence.hpp"
#include "loop/scheduled_text.hpp"

namespace specllama {

// No member may be called while one of the decoders decodes.
class CacheRoom {
public:
    using Texts = std::vector<ScheduledText *>;

    explicit CacheRoom(std::vector<std::shared_ptr<Decoder>> decoders) : decoders_(std::move(decoders)) {}

    // Whether `count` more tokens fit into a decoder's cache.
    bool has_room(Decoder & decoder, std::size_t count) const;

    // Makes some room in a decoder whose cache is full: clears a free slot, or pauses a text. Returns whether there is
    // more room now.
    bool make(Decoder & decoder, const Texts & texts);

    // The paused text that goes on next; null if no text waits to go on.
    static ScheduledText * oldest_paused(const Texts & texts);
    // Whether `paused` may go on: its tokens fit beside the other texts, or no other text is expected to go on soon. A
    // text that has been away since before the time `since` is not expected to go on soon.
    bool may_resume(const ScheduledText & paused, const Texts & texts, double since) const;
    // Pauses texts younger than `paused` whose prompts are being decoded: they would take the room that `paused` waits
    // for.
    void hold_back(const Texts & texts, const ScheduledText & paused);

    // The sequence of a text in decoder number k; null if the text has none there.
    Sequence * sequence(const ScheduledText & text, std::size_t k) const;
    // How often texts were paused.
    std::size_t num_pauses() const { return num_pauses_; }

private:
    bool clear_free(Decoder & decoder, const Texts & texts);
    void pause(ScheduledText & text);
    bool fits(const ScheduledText & paused, const Texts & texts) const;

    std::vector<std::shared_ptr<Decoder>> decoders_;
    std::size_t num_pauses_ = 0;
};

}  // namespace specllama
