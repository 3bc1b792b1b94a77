// One sequence of a decoder.
#include "llama/sequence.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "llama/clock.hpp"
#include "llama/errors.hpp"

namespace specllama {

namespace {

[[noreturn]] void fail(const Decoder & decoder, int code, std::size_t count, std::size_t committed) {
    const std::string what = "llama_decode of " + std::to_string(count) + " tokens after " + std::to_string(committed) +
                             " returned " + std::to_string(code) + " on the " + decoder.name();
    if (code == 1) {
        throw NoRoomError(what + ": no room in the KV cache; create the Llama with a larger n_ctx");
    }
    if (code == 2) {
        throw DecodeError(what + ": aborted by the abort callback; the call can be repeated");
    }
    throw DecodeError(what + ": the backend failed (out of memory?); nothing was lost, the call can be repeated");
}

constexpr std::size_t least_shared = 16;   // tokens: for fewer, decoding is faster than waiting
constexpr std::size_t most_marks = 3;      // copies of the state at the last marks
constexpr std::size_t mark_distance = 16;  // the least tokens between two marks
constexpr std::size_t most_wanted = 2;     // copies of the state for other sequences

}  // namespace

Sequence::Sequence(std::shared_ptr<Decoder> decoder, int32_t id) : decoder_(std::move(decoder)), id_(id) {
    decoder_->add_sequence(id_, this);
}

void Sequence::assume(std::vector<int32_t> tokens) {
    const std::lock_guard lock(decoder_->memory_mutex());
    const std::size_t count = num_common(tokens, tokens_);
    drop_copies_behind(count);
    tokens_ = std::move(tokens);
    count_tokens();
    cells_.resize(count);
    number_cells();
    more_after_ = true;
    padding_ = 0;
    num_forgettable_ = 0;
}

std::vector<int32_t> Sequence::copy_tokens() const {
    const std::lock_guard lock(decoder_->memory_mutex());
    return tokens_;
}

void Sequence::clear() {
    decoder_->clear(id_);
    shrink(0);
}

void Sequence::shrink(std::size_t count) {
    tokens_.resize(count);
    count_tokens();
    cells_.resize(count);
    drop_copies_behind(count);
    more_after_ = false;
    padding_ = 0;
    num_forgettable_ = 0;
}

void Sequence::drop_padding() {
    if (padding_ > 0) {
        keep(tokens_.size());
    }
}

// Before a batch of other sequences: it may move the recurrent state of this one, but not its snapshots.
void Sequence::drop_snapshots() {
    drop_padding();
    num_forgettable_ = 0;
}

// Gives numbers to the new cells.
void Sequence::number_cells() {
    while (cells_.size() < tokens_.size()) {
        cells_.push_back(decoder_->next_cell());
    }
}

bool Sequence::remove_behind(std::size_t count) {
    if (decoder_->is_recurrent()) {
        // llama_memory_seq_rm may succeed with snapshots of an earlier batch, as if they were those of the last one. So
        // the answer of that function is not enough.
        const std::size_t end = decoder_->memory_end(id_);
        if (end < count || end - count > num_forgettable_) {
            return false;
        }
    }
    return decoder_->remove_behind(id_, count);
}

void Sequence::drop_copies_behind(std::size_t count) {
    for (Checkpoints * copies : {&prompt_, &first_mark_, &marks_, &wanted_, &checkpoints_}) {
        copies->drop_behind(count);
    }
}

// The last copy at or before `count` tokens; null if there is none.
const Checkpoint * Sequence::latest(std::size_t count) const {
    const Checkpoint * best = nullptr;
    for (const Checkpoints * copies : {&prompt_, &first_mark_, &marks_, &wanted_, &checkpoints_}) {
        const Checkpoint * found = copies->latest(count);
        if (found != nullptr && (best == nullptr || found->position > best->position)) {
            best = found;
        }
    }
    return best;
}

// Goes back to the last copy at or before `count` tokens, or empties the cache.
void Sequence::restore(std::size_t count) {
    const std::lock_guard lock(decoder_->memory_mutex());
    const Stopwatch stopwatch(decode_seconds_);
    const Checkpoint * best = latest(count);
    if (best != nullptr && decoder_->restore_state(id_, best->state) && remove_behind(best->position)) {
        shrink(best->position);
    } else {
        clear();
    }
}

void Sequence::save_recurrent(Checkpoints & checkpoints, std::size_t most) {
    decoder_->require_open();
    if (decoder_->is_recurrent() && decoder_->can_copy()) {
        save_to(checkpoints, most);
    }
}

void Sequence::save_to(Checkpoints & checkpoints, std::size_t most) {
    const std::size_t position = tokens_.size();
    const Checkpoint * newest = latest(position);
    if (position == 0 || (newest != nullptr && newest->position == position)) {
        return;
    }
    const std::lock_guard lock(decoder_->memory_mutex());
    const Stopwatch stopwatch(decode_seconds_);
    drop_padding();
    if (!decoder_->copy_state(id_, checkpoints.add(position, most).state)) {
        checkpoints.drop_behind(position - 1);
    }
}

// The marks of a text: the last ones, and then the first. No copy is made for its last token, which is decoded with the
// next batch.
std::vector<std::size_t> Sequence::marks(const std::vector<int32_t> & history) const {
    std::vector<std::size_t> found;
    for (std::size_t i = history.empty() ? 0 : history.size() - 1; i > 0 && found.size() < most_marks; --i) {
        if ((found.empty() || i + mark_distance <= found.back()) && decoder_->is_control(history[i])) {
            found.push_back(i);
        }
    }
    for (std::size_t i = mark_distance; !found.empty() && i < found.back(); ++i) {
        if (decoder_->is_control(history[i])) {
            found.push_back(i);
        }
    }
    return found;
}

std::optional<std::size_t> Sequence::next_mark(const std::vector<int32_t> & history) const {
    std::optional<std::size_t> next;
    if (!decoder_->needs_marks()) {
        return next;
    }
    for (const std::size_t mark : marks(history)) {
        if (mark > tokens_.size()) {
            next = mark;
        }
    }
    const std::lock_guard lock(decoder_->memory_mutex());
    for (const std::size_t place : asked_) {
        if (place > tokens_.size() && place < next.value_or(history.size())) {
            next = place;
        }
    }
    return next;
}

void Sequence::save_mark(const std::vector<int32_t> & history) {
    const std::lock_guard lock(decoder_->memory_mutex());
    drop_padding();
    if (!decoder_->needs_marks() || more_after_) {
        return;
    }
    if (std::find(asked_.begin(), asked_.end(), tokens_.size()) != asked_.end()) {
        save_to(wanted_, most_wanted);
    }
    const std::vector<std::size_t> all = marks(history);
    if (!all.empty() && all.size() > most_marks && all.back() == tokens_.size()) {
        save_to(first_mark_, 1);
    } else if (std::find(all.begin(), all.end(), tokens_.size()) != all.end()) {
        save_to(marks_, most_marks);
    }
}

std::size_t Sequence::keep_common(const std::vector<int32_t> & history) {
    const std::lock_guard lock(decoder_->memory_mutex());
    keep(std::min(num_common(tokens_, history), history.empty() ? 0 : history.size() - 1));
    return tokens_.size();
}

void Sequence::keep(std::size_t count) {
    const std::lock_guard lock(decoder_->memory_mutex());
    decoder_->require_open();
    count = std::min(count, tokens_.size());
    const bool nothing_to_do = count == tokens_.size() && !more_after_;
    if (nothing_to_do && (!decoder_->is_recurrent() || decoder_->memory_end(id_) == count)) {
        return;
    }
    if (count > 0 && remove_behind(count)) {
        shrink(count);
    } else {
        restore(count);
    }
}

void Sequence::borrow(const std::vector<int32_t> & history) {
    const std::lock_guard lock(decoder_->memory_mutex());
    drop_padding();
    if (history.size() < tokens_.size() + 2 || num_common(history, tokens_) < tokens_.size() || more_after_) {
        return;
    }
    if (decoder_->shares_states()) {
        borrow_state(history);
    } else if (decoder_->shares_cells()) {
        borrow_cells(history);
    }
}

void Sequence::borrow_cells(const std::vector<int32_t> & history) {
    const Sequence * best = nullptr;
    std::size_t end = tokens_.size();
    for (const auto & [id, other] : decoder_->sequences()) {
        const std::size_t common = std::min(num_common(history, other->tokens_), history.size() - 1);
        if (other != this && common > end) {
            best = other;
            end = common;
        }
    }
    if (best == nullptr) {
        return;
    }
    const std::size_t held = tokens_.size();
    if (!decoder_->has_cells_from(best->id_, held)) {
        if (!decoder_->window_is_whole(best->id_, end)) {
            return;
        }
        clear();  // a hole before the other's cells would look like a window that is whole
    }
    if (decoder_->share(best->id_, id_, tokens_.size(), end)) {
        took_over(*best, history, end);
        num_borrowed_ += end - held;
    } else {
        more_after_ = true;
        keep(tokens_.size());
    }
}

// A state cannot be cut. So it is taken over where the other sequence has a copy of it.
void Sequence::borrow_state(const std::vector<int32_t> & history) {
    const Sequence * best = nullptr;
    const Checkpoint * copy = nullptr;
    std::size_t end = tokens_.size() + least_shared - 1;
    for (const auto & [id, other] : decoder_->sequences()) {
        const std::size_t common = std::min(num_common(history, other->tokens_), history.size() - 1);
        const Checkpoint * found = other == this ? nullptr : other->latest(common);
        if (found != nullptr && found->position > end) {
            best = other;
            copy = found;
            end = found->position;
        }
    }
    if (best == nullptr) {
        return;
    }
    const Stopwatch stopwatch(decode_seconds_);
    if (decoder_->share(best->id_, id_, tokens_.size(), end, copy->state)) {
        num_borrowed_ += end - tokens_.size();
        took_over(*best, history, end);
    } else {
        more_after_ = true;
        restore(tokens_.size());
    }
}

void Sequence::took_over(const Sequence & other, const std::vector<int32_t> & history, std::size_t end) {
    tokens_.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(end));
    count_tokens();
    cells_.insert(cells_.end(), other.cells_.begin() + static_cast<std::ptrdiff_t>(cells_.size()),
                  other.cells_.begin() + static_cast<std::ptrdiff_t>(end));
    num_forgettable_ = 0;
}

// Checking and planning hold one lock: of two sequences that ask at the same time, only one gets true.
bool Sequence::plan(const std::vector<int32_t> & history) {
    const std::lock_guard lock(decoder_->memory_mutex());
    const auto & all = decoder_->sequences();
    const bool shares = decoder_->shares_cells() || decoder_->shares_states();
    if (shares && std::any_of(all.begin(), all.end(),
                              [this, &history](const auto & other) { return is_behind(*other.second, history); })) {
        return false;
    }
    if (plan_turn_ == 0) {
        plan_turn_ = decoder_->next_plan();
        asked_.clear();
    }
    plan_ = history;
    return true;
}

void Sequence::drop_plan() {
    const std::lock_guard lock(decoder_->memory_mutex());
    plan_.clear();
    plan_turn_ = 0;
}

// Whether `other` is ahead in a part that both sequences are about to decode: `other` holds more of the part, or
// planned it earlier. A state that cannot be cut is copied there.
bool Sequence::is_behind(Sequence & other, const std::vector<int32_t> & history) const {
    if (&other == this || other.plan_turn_ == 0) {
        return false;
    }
    const std::size_t held = other.tokens_.size();
    // The last token of a prompt is not part of a plan: the first round decodes it.
    const std::size_t most = std::min(history.size(), other.plan_.size()) - 1;
    const std::size_t common = std::min(num_common(history, other.plan_), most);
    const bool is_first = plan_turn_ == 0 || other.plan_turn_ < plan_turn_;
    const bool is_ahead = held > tokens_.size() || (held == tokens_.size() && is_first);
    const bool waits = is_ahead && held < common && common >= tokens_.size() + least_shared;
    if (waits && decoder_->is_recurrent() &&
        std::find(other.asked_.begin(), other.asked_.end(), common) == other.asked_.end()) {
        other.asked_.push_back(common);
    }
    return waits;
}

BatchPart Sequence::part_of(const Addition & addition) const {
    auto part = static_cast<const BatchPart &>(addition);
    part.seq_id = id_;
    part.position = tokens_.size();
    if (decoder_->reads_target()) {
        const std::lock_guard lock(decoder_->memory_mutex());
        part.position = decoder_->memory_end(id_);
    }
    return part;
}

void Sequence::added(const Addition & addition, std::size_t first_row, double seconds) {
    first_row_ = first_row;
    num_decoded_ += addition.count + (addition.branch_rows == nullptr ? 0 : addition.branch_rows->size());
    decode_seconds_ += seconds;
    if (decoder_->reads_target()) {
        return;
    }
    tokens_.insert(tokens_.end(), addition.tokens, addition.tokens + addition.count);
    count_tokens();
    number_cells();
    padding_ = addition.padding;
    more_after_ = padding_ > 0;
    num_forgettable_ = std::min(decoder_->num_snapshots(), addition.count + padding_ - 1);
}

// Restores the cache after a failed batch. The cache may hold a part of that batch.
void Sequence::recover(int code) {
    more_after_ = true;
    if (decoder_->is_recurrent() && code != 1) {
        restore(tokens_.size());  // the state may have been overwritten, whatever position the memory reports
    } else {
        keep(tokens_.size());
    }
}

void Sequence::refuse_bad(const Addition & addition) const {
    decoder_->require_open();
    const BatchPart part = part_of(addition);
    decoder_->refuse_bad_batch(&part, 1);
}

void Sequence::decode_together(const Addition * additions, std::size_t count) {
    if (count == 0) {
        throw std::invalid_argument("nothing to decode: give at least one sequence its tokens");
    }
    Decoder & decoder = additions[0].sequence->decoder();
    const std::lock_guard lock(decoder.memory_mutex());
    decoder.require_open();
    std::vector<BatchPart> parts;
    parts.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        additions[i].sequence->drop_padding();
        parts.push_back(additions[i].sequence->part_of(additions[i]));
        const auto is_same = [&](const Addition & other) { return other.sequence == additions[i].sequence; };
        if (&additions[i].sequence->decoder() != &decoder || std::any_of(additions, additions + i, is_same)) {
            throw std::invalid_argument("a batch is of one decoder, and has each of its sequences once");
        }
    }
    decoder.refuse_bad_batch(parts.data(), count);
    for (const auto & [id, other] : decoder.sequences()) {
        if (count > 1 && std::none_of(additions, additions + count, [sequence = other](const Addition & addition) {
                return addition.sequence == sequence;
            })) {
            other->drop_snapshots();
        }
    }
    const std::size_t committed = additions[0].sequence->tokens().size();
    const double start = now_seconds();
    const int32_t code = decoder.decode(parts.data(), count);
    const double share = (now_seconds() - start) / static_cast<double>(count);
    std::size_t row = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (code == 0) {
            additions[i].sequence->added(additions[i], row, share);
        } else {
            additions[i].sequence->recover(code);
        }
        row += additions[i].count + additions[i].padding;
    }
    if (code != 0) {
        decoder.raise_interruption();
        fail(decoder, code, row, committed);
    }
}

// Whether the memory holds tokens_ and nothing else.
bool Sequence::stands_at_its_end() {
    decoder_->require_open();
    return decoder_->can_copy() && !more_after_ && decoder_->memory_end(id_) == tokens_.size();
}

StateBytes Sequence::copy_range(std::size_t first, std::size_t end) {
    const std::lock_guard lock(decoder_->memory_mutex());
    if (!stands_at_its_end() || !decoder_->copies_ranges() || first >= end || end > tokens_.size()) {
        return {};
    }
    if (decoder_->has_whole_ranges() && !decoder_->has_cells_from(id_, first)) {
        return {};
    }
    return decoder_->copy_range(id_, first, end);
}

bool Sequence::put_range(const std::uint8_t * data, std::size_t size, const std::vector<int32_t> & tokens) {
    const std::lock_guard lock(decoder_->memory_mutex());
    decoder_->require_open();
    const std::size_t first = tokens_.size();
    const std::size_t end = first + tokens.size();
    if (!decoder_->copies_ranges() || more_after_ || tokens.empty() || end > decoder_->n_ctx()) {
        return false;
    }
    if (!decoder_->put_range(id_, data, size, first, end)) {
        more_after_ = true;
        keep(first);
        return false;
    }
    take(tokens);
    return true;
}

// Appends tokens that are in the memory by now.
void Sequence::take(const std::vector<int32_t> & tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    count_tokens();
    number_cells();
    num_forgettable_ = 0;
}

StateBytes Sequence::copy_point(std::size_t count) {
    const std::lock_guard lock(decoder_->memory_mutex());
    if (!stands_at_its_end() || count == 0 || count > tokens_.size()) {
        return {};
    }
    if (count == tokens_.size()) {
        return decoder_->copy_point(id_);
    }
    const Checkpoint * found = latest(count);
    StateBytes copy;
    if (found != nullptr && found->position == count && decoder_->copies_partly()) {
        copy.size = found->state.size();
        copy.data.reset(new std::uint8_t[copy.size]);
        std::copy(found->state.begin(), found->state.end(), copy.data.get());
    }
    return copy;
}

bool Sequence::put_point(const std::uint8_t * data, std::size_t size, const std::vector<int32_t> & tokens) {
    const std::lock_guard lock(decoder_->memory_mutex());
    decoder_->require_open();
    if (!decoder_->can_copy() || tokens.empty() || tokens.size() > decoder_->n_ctx()) {
        return false;
    }
    if (!decoder_->copies_ranges()) {
        clear();
    }
    if (!decoder_->put_point(id_, data, size) || decoder_->memory_end(id_) != tokens.size() ||
        !decoder_->remove_behind(id_, tokens.size())) {
        clear();
        return false;
    }
    shrink(std::min(tokens_.size(), num_common(tokens, tokens_)));
    take({tokens.begin() + static_cast<std::ptrdiff_t>(tokens_.size()), tokens.end()});
    return true;
}

std::vector<std::size_t> Sequence::copied_points() const {
    std::vector<std::size_t> all;
    if (decoder_->copies_partly()) {
        for (const Checkpoints * copies : {&first_mark_, &marks_, &prompt_}) {
            const std::vector<std::size_t> some = copies->positions();
            all.insert(all.end(), some.begin(), some.end());
        }
    }
    return all;
}

}  // namespace specllama
