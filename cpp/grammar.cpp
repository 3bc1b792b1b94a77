// A GBNF grammar, by llama.cpp's own engine.
//
// llama.cpp aborts the process when a grammar accepts an end of text that it does not allow, and throws when it accepts
// another such token, which leaves a state behind on which the next call aborts. So a token is accepted only after it
// has been tested, and only by a copy.
#include "grammar.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace specllama {

namespace {

constexpr std::size_t most_states = 64;    // beyond them the way from the start is gone once more
constexpr std::size_t most_forced = 8192;  // tokens that one question may take
constexpr std::size_t shown = 200;         // characters of a grammar in a message

}  // namespace

Grammar::Grammar(std::shared_ptr<const LlamaApi> api, const llama_vocab * vocab,
                 std::shared_ptr<const FirstBytes> first_bytes, const std::string & gbnf, const std::string & root)
    : api_(std::move(api)), vocab_(vocab), first_bytes_(std::move(first_bytes)) {
    llama_sampler * sampler = api_->llama_sampler_init_grammar(vocab, gbnf.c_str(), root.c_str());
    if (sampler == nullptr) {
        throw std::invalid_argument(
            "llama.cpp cannot use this grammar (what it says is on stderr): it must be GBNF with a "
            "rule '" +
            root +
            "', define every rule that it names, and have no left recursion. "
            "It begins: " +
            gbnf.substr(0, shown));
    }
    start_ = owned(sampler);
    states_.push_back(start_);
}

Grammar::State Grammar::owned(llama_sampler * sampler) const {
    return {sampler, [api = api_](llama_sampler * freed) { api->llama_sampler_free(freed); }};
}

void Grammar::forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) {
    go_behind(recent, n_recent);
    test(states_.back(), candidates, count);
}

void Grammar::go_behind(const int32_t * recent, std::size_t n_recent) {
    auto same = static_cast<std::size_t>(
        std::mismatch(tokens_.begin(), tokens_.end(), recent, recent + n_recent).first - tokens_.begin());
    const std::size_t back = tokens_.size() - same;
    if (back < states_.size()) {
        states_.erase(states_.end() - static_cast<std::ptrdiff_t>(back), states_.end());
    } else {
        states_.assign(1, start_);
        same = 0;
    }
    tokens_.resize(same);
    for (std::size_t i = same; i < n_recent; ++i) {
        states_.push_back(follower(states_.back(), recent[i]));
        tokens_.push_back(recent[i]);
        if (states_.size() > most_states) {
            states_.pop_front();
        }
    }
}

// The state behind one more token: the same state where the token is not allowed, or ends the text.
Grammar::State Grammar::follower(const State & state, int32_t token) {
    Candidate candidate{token, 0.0F};
    if (token < 0 || token >= api_->llama_vocab_n_tokens(vocab_) || api_->llama_vocab_is_eog(vocab_, token)) {
        return state;
    }
    test(state, &candidate, 1);
    if (candidate.logit < 0.0F) {
        return state;
    }
    State next = owned(api_->llama_sampler_clone(state.get()));
    try {
        api_->llama_sampler_accept(next.get(), token);
    } catch (const std::exception &) {
        return state;  // where rules name tokens, its test lets some pass that it then cannot follow
    }
    return next;
}

std::optional<Constraint::Forced> Grammar::forced(const int32_t * recent, std::size_t n_recent) {
    go_behind(recent, n_recent);
    const std::optional<std::size_t> byte = only_byte(states_.back());
    if (!byte || *byte == FirstBytes::end || first_bytes_->tokens(*byte).size() > most_forced) {
        return std::nullopt;
    }
    const std::vector<int32_t> allowed = allowed_of(states_.back(), first_bytes_->tokens(*byte));
    if (allowed.size() == 1) {
        return Forced{allowed.front(), true};
    }
    // Several tokens leave no choice of text if each begins the longest one. Where two are equal the later one is the
    // usual one: tokens for single bytes come first.
    Forced longest{-1, false};
    std::string text;
    for (const int32_t token : allowed) {
        std::string other = FirstBytes::text(*api_, vocab_, token);
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

// The first byte of whatever may come next, if there is but one.
std::optional<std::size_t> Grammar::only_byte(const State & state) {
    std::vector<Candidate> probes;
    std::vector<std::size_t> bytes;
    for (std::size_t byte = 0; byte <= FirstBytes::end; ++byte) {
        for (const int32_t token : first_bytes_->probes(byte)) {
            probes.push_back({token, 0.0F});
            bytes.push_back(byte);
        }
    }
    test(state, probes.data(), probes.size());
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

std::vector<int32_t> Grammar::allowed_of(const State & state, const std::vector<int32_t> & tokens) {
    std::vector<Candidate> candidates;
    candidates.reserve(tokens.size());
    for (const int32_t token : tokens) {
        candidates.push_back({token, 0.0F});
    }
    test(state, candidates.data(), candidates.size());
    std::vector<int32_t> allowed;
    for (const Candidate & candidate : candidates) {
        if (candidate.logit == 0.0F) {
            allowed.push_back(candidate.id);
        }
    }
    return allowed;
}

void Grammar::test(const State & state, Candidate * candidates, std::size_t count) {
    if (count == 0) {
        return;
    }
    data_.clear();
    for (std::size_t i = 0; i < count; ++i) {
        data_.push_back({candidates[i].id, candidates[i].logit, 0.0F});
    }
    llama_token_data_array array{data_.data(), data_.size(), -1, false};
    api_->llama_sampler_apply(state.get(), &array);
    for (std::size_t i = 0; i < count; ++i) {
        candidates[i].logit = data_[i].logit;
    }
}

}  // namespace specllama
