// What decodes for a text.
#include "llama/decoding.hpp"

#include <algorithm>
#include <list>

namespace specllama {

// Several sequences may have the same decoder, which is marked as in use only once.
std::shared_ptr<void> SingleText::visit(const std::vector<Sequence *> & sequences, const bool & /*under_way*/,
                                        const std::function<void()> * poll) {
    std::vector<Decoder *> decoders;
    auto uses = std::make_shared<std::list<Decoder::Use>>();
    for (Sequence * sequence : sequences) {
        Decoder & decoder = sequence->decoder();
        if (std::find(decoders.begin(), decoders.end(), &decoder) == decoders.end()) {
            uses->emplace_back(decoder, poll);
            decoders.push_back(&decoder);
        }
    }
    return uses;
}

std::size_t tokens_to_prefill(const Sequence & sequence, const std::vector<int32_t> & history) {
    return history.size() - 1 - std::min(history.size() - 1, sequence.tokens().size());
}

PromptPart next_prompt_part(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history) {
    const bool is_ours = decoding.share(sequence, history);
    const std::size_t left = tokens_to_prefill(sequence, history);
    if (!is_ours) {
        return {left, 0};
    }
    sequence.save_mark(history);
    const std::size_t held = sequence.tokens().size();
    const std::size_t to_mark = sequence.next_mark(history).value_or(held + left) - held;
    return {left, std::min({left, decoding.chunk(sequence.decoder()), to_mark})};
}

PromptPart prefill_chunk(Decoding & decoding, Sequence & sequence, const std::vector<int32_t> & history,
                         bool keeps_states) {
    const PromptPart part = next_prompt_part(decoding, sequence, history);
    if (part.count > 0) {
        Sequence::Addition addition{{history.data() + sequence.tokens().size(), part.count, part.count}, &sequence};
        addition.keeps_states = keeps_states;
        decoding.decode(addition);
    }
    return {part.left - part.count, part.count};
}

}  // namespace specllama
