// What drafters are made from, and the functions that make them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drafters/draft_tokens.hpp"
#include "drafters/drafter.hpp"
#include "drafters/source.hpp"
#include "heads/state_head.hpp"
#include "pacing/acceptance_rates.hpp"
#include "pacing/lookahead_window.hpp"
#include "translation/token_map.hpp"
#include "translation/translation.hpp"

namespace specllama {

// At most request.gamma tokens, and as many distributions. q is not checked against the drawing: each token must have
// been drawn from its q, or depend on the history alone and have a q of one token.
struct DraftedByFunction {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
};
using DraftingFunction = std::function<DraftedByFunction(const DraftRequest & request)>;

struct DrafterParts {
    std::shared_ptr<Sequence> model = nullptr;  // of a draft model
    std::shared_ptr<Sequence> head = nullptr;
    std::vector<int32_t> corpus;                    // more text to search besides prompt and output
    DraftingFunction function = nullptr;            // the caller's
    std::shared_ptr<DraftTokens> tokens = nullptr;  // the tokens that a draft model chooses among; null: all
    std::optional<int32_t> mask = std::nullopt;     // PARD draft: stands for a token that is not known yet
    std::size_t window = 0;                         // the most tokens of the text that model and head hold; 0: no limit
    std::shared_ptr<const TokenMap> map = nullptr;  // for a model of another vocabulary; null: it has the target's
    std::shared_ptr<const Translation> translation = nullptr;  // for a model of another tokenizer
    std::string inner;  // name of the drafter that guesses what the draft model will draw; empty: none
    std::shared_ptr<Sequence> inner_model = nullptr;        // of that drafter, if it is a model
    std::shared_ptr<const TokenMap> inner_map = nullptr;    // as `map`, for that model
    bool is_inner = false;                                  // this drafter guesses what another one will draw
    std::shared_ptr<const StateHead> state_head = nullptr;  // a head that llama.cpp does not compute
    std::shared_ptr<LookaheadWindow> lookahead = nullptr;
};

// Each drafter's file defines make_NAME, and NAME_priors: what is assumed of its tokens before any was verified.
#define SPECLLAMA_MAKE(name, origin, needs, summary)                  \
    std::unique_ptr<Drafter> make_##name(const DrafterParts & parts); \
    DrafterPriors name##_priors();
SPECLLAMA_DRAFTERS(SPECLLAMA_MAKE)
#undef SPECLLAMA_MAKE

// Throws std::invalid_argument for an unknown name, or if a part is missing.
std::unique_ptr<Drafter> make_drafter(const std::string & name, const DrafterParts & parts);

// The priors of all drafters, by Source.
std::vector<DrafterPriors> all_priors();

}  // namespace specllama
