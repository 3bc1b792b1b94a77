// The base of heads that read the target's hidden states into a memory of their own.
#include "drafters/reading_head.hpp"

#include <utility>

#include "llama/errors.hpp"

namespace specllama {

ReadingHead::ReadingHead(Source source, std::shared_ptr<Sequence> sequence, std::size_t window, std::size_t most,
                         std::size_t behind)
    : DrawingDrafter(source),
      sequence_(std::move(sequence)),
      kept_(sequence_->decoder().n_features()),
      window_(window > 0 ? std::min(window, most) : most),
      behind_(behind) {}

void ReadingHead::observe(const DecodedBatch & batch) {
    kept_.forget(batch.unchanged);
    if (batch.states != nullptr) {
        kept_.append(batch.first, batch.states, batch.count);
    }
    size_ = batch.history.size();
    take_text(batch.history);
    // The memory keeps only tokens before the first change of the text, and not the text's last token, which is decoded
    // when a draft begins.
    std::size_t held = std::min({num_true(), batch.unchanged - std::min(batch.unchanged, begin_ + behind_),
                                 num_common(text_, sequence_->tokens()), text_.empty() ? 0 : text_.size() - 1});
    if (held == 0 || kept_.first() > begin_ + held) {
        begin_ = kept_.first();
        held = 0;
    }
    if (size_ > begin_ + 1 + window_) {
        begin_ = std::max({begin_, kept_.first(), size_ - 1 - std::max<std::size_t>(1, window_ / 2)});
        held = 0;
    }
    take_text(batch.history);
    sequence_->keep(held);
}

void ReadingHead::take_text(const std::vector<int32_t> & history) {
    const std::size_t first = std::min(begin_ + behind_, history.size());
    text_.assign(history.begin() + static_cast<std::ptrdiff_t>(first), history.end());
}

std::vector<DrafterMemory> ReadingHead::memories(const std::vector<int32_t> & history) const {
    if (history.size() <= behind_ + 1 || history.size() > 1 + window_) {
        return {};
    }
    return {{sequence_, {history.begin() + static_cast<std::ptrdiff_t>(behind_), history.end() - 1}}};
}

void ReadingHead::refilled(const std::vector<int32_t> & history) {
    const std::vector<int32_t> & held = sequence_->tokens();
    const std::size_t first = std::min(behind_, history.size());
    if (held.empty() || held.size() > history.size() - first ||
        !std::equal(held.begin(), held.end(), history.begin() + static_cast<std::ptrdiff_t>(first))) {
        return;
    }
    begin_ = 0;
    kept_ = KeptStates(sequence_->decoder().n_features());
    take_text(history);
    all_are_true();
}

void ReadingHead::finish(const std::vector<int32_t> &) {
    if (!sequence_->decoder().is_open()) {
        return;
    }
    try {
        const Decoder::Use in_use(sequence_->decoder());
        sequence_->keep(num_true());
    } catch (const BusyError &) {  // NOLINT(bugprone-empty-catch)
        // Another target uses the head by now, and has rolled back the head's memory itself.
    }
}

std::size_t ReadingHead::catch_up() {
    const std::size_t ready = std::min(text_.empty() ? 0 : text_.size() - 1, num_ready());
    const std::size_t left = ready - std::min(ready, num_held());
    const std::size_t count = std::min(left, decoding_->chunk(sequence_->decoder()));
    if (count > 0) {
        read(count);
    }
    return left - count;
}

double ReadingHead::decode(const Sequence::Addition & addition) {
    const double before = sequence_->decode_seconds();
    decoding_->decode(addition);
    return sequence_->decode_seconds() - before;
}

void ReadingHead::report(std::size_t count, double seconds) const {
    if (costs_ != nullptr && sequence_->decoder().was_warm()) {
        costs_->observe(count, seconds);
    }
}

}  // namespace specllama
