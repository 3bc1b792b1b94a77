// A GBNF grammar, by llama.cpp's own engine.
//
// llama.cpp aborts the process when a grammar accepts an end of text that it does not allow, and throws when it accepts
// another such token, which leaves a state behind on which the next call aborts. So a token is accepted only after it
// has been tested, and a state that threw is made again. Copying one takes up to a hundred times longer than accepting
// a token (it looks for each element of each stack in all rules), so that copies are few.
#include "llama/grammar.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace specllama {

namespace {

constexpr std::size_t spacing = 16;        // tokens from one copy to the next
constexpr std::size_t most_copies = 3;     // beside the first: from there all of the way is gone once more
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
    copies_.push_back({0, owned(sampler)});
    go_back(0);
}

Grammar::State Grammar::owned(llama_sampler * sampler) const {
    return {sampler, [api = api_](llama_sampler * freed) { api->llama_sampler_free(freed); }};
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

// To where the first `count` steps led.
void Grammar::go_back(std::size_t count) {
    while (copies_.back().num_steps > count) {
        copies_.pop_back();
    }
    state_ = owned(api_->llama_sampler_clone(copies_.back().state.get()));
    steps_.resize(count);
    for (std::size_t i = copies_.back().num_steps; i < count; ++i) {
        if (steps_[i].followed) {
            api_->llama_sampler_accept(state_.get(), steps_[i].token);
        }
    }
}

// One token further: nowhere if the token is not allowed, or ends the text.
void Grammar::go_on(int32_t token) {
    bool followed = goes_on_with(token);
    if (followed) {
        try {
            api_->llama_sampler_accept(state_.get(), token);
        } catch (const std::exception &) {
            followed = false;  // where rules name tokens, its test lets some pass that it then cannot follow
            go_back(steps_.size());
        }
    }
    steps_.push_back({token, followed});
    if (steps_.size() - copies_.back().num_steps >= spacing) {
        copies_.push_back({steps_.size(), owned(api_->llama_sampler_clone(state_.get()))});
        if (copies_.size() > 1 + most_copies) {
            copies_.erase(copies_.begin() + 1);
        }
    }
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
    // Several tokens leave no choice of text if each begins the longest one. Where two are equal the later one is the
    // usual one: tokens for single bytes come first.
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

// The first byte of whatever may come next, if there is but one.
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
    if (count == 0) {
        return;
    }
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

}  // namespace specllama
