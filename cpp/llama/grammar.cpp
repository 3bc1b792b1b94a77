// A GBNF grammar, checked by llama.cpp's own engine.
//
// llama.cpp aborts the process when a grammar accepts an end of text that it does not allow. It throws when it accepts
// another forbidden token; the state that this leaves aborts in the next call. So a token is tested before it is
// accepted, and a state that threw is made again. Copying a state takes up to a hundred times longer than accepting a
// token (llama.cpp looks up each element of each stack in all rules), so copies are few.
//
// A question about a whole vocabulary may take minutes, and llama.cpp cannot be interrupted meanwhile. So it is asked
// about some tokens at a time. Two things cannot be divided. One is a single token; the number of ways through it is
// bounded before (see specllama/grammars/runs.py). The other is a copy: for a grammar of ten thousand words it takes
// seconds, and no further copy is made then.
#include "llama/grammar.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "llama/clock.hpp"

namespace specllama {

namespace {

constexpr std::size_t spacing = 16;        // tokens from one copy to the next
constexpr std::size_t most_copies = 3;     // if none of them is early enough, all steps are done again
constexpr double slow_copy = 0.25;         // seconds: no further copies are made after one this slow
constexpr std::size_t part = 512;          // tokens that are tested at a time
constexpr double most_seconds = 10.0;      // of work at one place of a text
constexpr double interval = 0.05;          // seconds of work between two calls of poll
constexpr std::size_t most_forced = 8192;  // tokens that one question of forced() may test
constexpr std::size_t shown = 200;         // characters of a grammar in a message

}  // namespace

Grammar::Grammar(std::shared_ptr<const LlamaApi> api, const llama_vocab * vocab,
                 std::shared_ptr<const FirstBytes> first_bytes, const std::string & gbnf, const std::string & root)
    : api_(std::move(api)),
      vocab_(vocab),
      first_bytes_(std::move(first_bytes)),
      gbnf_(gbnf),
      root_(root),
      state_(at_beginning()) {}

Grammar::State Grammar::at_beginning() const {
    llama_sampler * sampler = api_->llama_sampler_init_grammar(vocab_, gbnf_.c_str(), root_.c_str());
    if (sampler == nullptr) {
        throw std::invalid_argument(
            "llama.cpp cannot use this grammar (what it says is on stderr): it must be GBNF with a "
            "rule '" +
            root_ +
            "', define every rule that it names, and have no left recursion. "
            "It begins: " +
            gbnf_.substr(0, shown));
    }
    return owned(sampler);
}

Grammar::State Grammar::owned(llama_sampler * sampler) const {
    return {sampler, [api = api_](llama_sampler * freed) { api->llama_sampler_free(freed); }};
}

Grammar::State Grammar::copy_of(const State & state) {
    const double start = now_seconds();
    State copy = owned(api_->llama_sampler_clone(state.get()));
    copies_take_long_ = now_seconds() - start > slow_copy;
    return copy;
}

void Grammar::forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) {
    go_behind(recent, n_recent);
    test(candidates, count);
}

void Grammar::go_behind(const int32_t * recent, std::size_t n_recent) {
    const auto same = std::mismatch(steps_.begin(), steps_.end(), recent, recent + n_recent,
                                    [](const Step & step, int32_t token) { return step.token == token; });
    if (same.first != steps_.end()) {
        go_back(static_cast<std::size_t>(same.first - steps_.begin()));
    }
    for (const int32_t * token = recent + steps_.size(); token != recent + n_recent; ++token) {
        go_on(*token);
    }
}

// Goes back to the state after the first `count` steps.
void Grammar::go_back(std::size_t count) {
    while (!copies_.empty() && (copies_take_long_ || copies_.back().num_steps > count)) {
        copies_.pop_back();
    }
    const std::size_t known = copies_.empty() ? 0 : copies_.back().num_steps;
    state_ = copies_.empty() ? at_beginning() : copy_of(copies_.back().state);
    const std::vector<Step> again(steps_.begin() + static_cast<std::ptrdiff_t>(known),
                                  steps_.begin() + static_cast<std::ptrdiff_t>(count));
    steps_.resize(known);
    for (const Step & step : again) {
        const double start = now_seconds();
        if (step.followed) {
            api_->llama_sampler_accept(state_.get(), step.token);
        }
        steps_.push_back(step);
        worked_since(start);
    }
    worked_ = 0.0;
}

// Goes one token further. The state does not change if the token is not allowed, or ends the text.
void Grammar::go_on(int32_t token) {
    bool followed = goes_on_with(token);
    worked_ = 0.0;
    const double start = now_seconds();
    if (followed) {
        try {
            api_->llama_sampler_accept(state_.get(), token);
        } catch (const std::exception &) {
            followed = false;  // where rules name tokens, llama.cpp's test allows some that it cannot accept
            go_back(steps_.size());
        }
    }
    steps_.push_back({token, followed});
    const std::size_t known = copies_.empty() ? 0 : copies_.back().num_steps;
    if (!copies_take_long_ && steps_.size() - known >= spacing) {
        copies_.push_back({steps_.size(), copy_of(state_)});
        if (copies_.size() > most_copies) {
            copies_.erase(copies_.begin());
        }
    }
    worked_since(start);
}

bool Grammar::goes_on_with(int32_t token) {
    if (token < 0 || token >= api_->llama_vocab_n_tokens(vocab_) || api_->llama_vocab_is_eog(vocab_, token)) {
        return false;
    }
    Candidate candidate{token, 0.0F};
    test(&candidate, 1);
    return candidate.logit == 0.0F;
}

std::optional<Constraint::Forced> Grammar::forced(const int32_t * recent, std::size_t n_recent) {
    go_behind(recent, n_recent);
    const std::optional<std::size_t> byte = only_byte();
    if (!byte || *byte == FirstBytes::end || first_bytes_->tokens(*byte).size() > most_forced) {
        return std::nullopt;
    }
    const std::vector<int32_t> allowed = allowed_of(first_bytes_->tokens(*byte));
    if (allowed.size() == 1) {
        return Forced{allowed.front(), true};
    }
    // Several allowed tokens leave no choice of text if each is the beginning of the longest one. Of two equal tokens
    // the later one is the usual one, because tokens for single bytes come first.
    Forced longest{-1, false};
    std::string text;
    for (const int32_t token : allowed) {
        std::string other = piece_of(*api_, vocab_, token, true);
        const std::size_t common = std::min(text.size(), other.size());
        if (text.compare(0, common, other, 0, common) != 0) {
            return std::nullopt;
        }
        if (other.size() >= text.size()) {
            longest.token = token;
            text = std::move(other);
        }
    }
    return longest.token < 0 ? std::nullopt : std::optional(longest);
}

// The first byte of the text that may come next, if there is only one.
std::optional<std::size_t> Grammar::only_byte() {
    std::vector<Candidate> probes;
    std::vector<std::size_t> bytes;
    for (std::size_t byte = 0; byte <= FirstBytes::end; ++byte) {
        for (const int32_t token : first_bytes_->probes(byte)) {
            probes.push_back({token, 0.0F});
            bytes.push_back(byte);
        }
    }
    test(probes.data(), probes.size());
    std::optional<std::size_t> only;
    for (std::size_t i = 0; i < probes.size(); ++i) {
        if (probes[i].logit < 0.0F || only == bytes[i]) {
            continue;
        }
        if (only) {
            return std::nullopt;
        }
        only = bytes[i];
    }
    return only;
}

std::vector<int32_t> Grammar::allowed_of(const std::vector<int32_t> & tokens) {
    std::vector<Candidate> candidates;
    candidates.reserve(tokens.size());
    for (const int32_t token : tokens) {
        candidates.push_back({token, 0.0F});
    }
    test(candidates.data(), candidates.size());
    std::vector<int32_t> allowed;
    for (const Candidate & candidate : candidates) {
        if (candidate.logit == 0.0F) {
            allowed.push_back(candidate.id);
        }
    }
    return allowed;
}

void Grammar::test(Candidate * candidates, std::size_t count) {
    for (std::size_t done = 0; done < count; done += part) {
        const double start = now_seconds();
        test_part(candidates + done, std::min(part, count - done));
        worked_since(start);
    }
}

void Grammar::test_part(Candidate * candidates, std::size_t count) {
    data_.clear();
    for (std::size_t i = 0; i < count; ++i) {
        data_.push_back({candidates[i].id, candidates[i].logit, 0.0F});
    }
    llama_token_data_array array{data_.data(), data_.size(), -1, false};
    api_->llama_sampler_apply(state_.get(), &array);
    for (std::size_t i = 0; i < count; ++i) {
        candidates[i].logit = data_[i].logit;
    }
}

void Grammar::worked_since(double start) {
    const double seconds = now_seconds() - start;
    worked_ += seconds;
    unpolled_ += seconds;
    if (poll_ != nullptr && unpolled_ > interval) {
        (*poll_)(std::exchange(unpolled_, 0.0));
    }
    if (worked_ > most_seconds) {
        worked_ = 0.0;
        throw std::invalid_argument(
            "llama.cpp needs more than " + std::to_string(static_cast<int>(most_seconds)) +
            " s to find out what this grammar allows after " + std::to_string(steps_.size()) +
            " tokens: do not repeat what repeats the same by itself, or give it fewer alternatives. It begins: " +
            gbnf_.substr(0, shown));
    }
}

}  // namespace specllama
