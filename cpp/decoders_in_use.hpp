// All decoders of a loop, marked as in use for the length of one call.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <vector>

#include "sequence.hpp"

namespace specllama {

class DecodersInUse {
public:
    // A decoder may have several of the sequences. heed: see Decoder::Use.
    DecodersInUse(const std::vector<Sequence *> & sequences, const std::function<void()> & heed) {
        for (Sequence * sequence : sequences) {
            Decoder & decoder = sequence->decoder();
            if (std::find(decoders_.begin(), decoders_.end(), &decoder) == decoders_.end()) {
                uses_.emplace_back(decoder, &heed);
                decoders_.push_back(&decoder);
            }
        }
    }

private:
    std::vector<Decoder *> decoders_;
    std::list<Decoder::Use> uses_;
};

}  // namespace specllama
