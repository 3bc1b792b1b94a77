// What drafters are made of, and who makes them.
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

// At most request.gamma tokens, and as many distributions. What it says of q is believed: each token must have been
// drawn from its q, or from nothing but the history with a q of one token.
struct DraftedByFunction {
    std::vector<int32_t> tokens;
    std::vector<Distribution> q;
};
using DraftingFunction = std::function<DraftedByFunction(const DraftRequest & request)>;

struct DrafterParts {
    std::shared_ptr<Sequence> model = nullptr;  // of a second model
    std::shared_ptr<Sequence> head = nullptr;
    std::vector<int32_t> corpus;                    // a text to look at besides prompt and output
    DraftingFunction function = nullptr;            // of the caller's
    std::shared_ptr<DraftTokens> tokens = nullptr;  // that the model chooses among; null: all
    std::optional<int32_t> mask = std::nullopt;     // stands for a token that is not known yet: a parallel draft
    std::size_t window = 0;                         // tokens of the text that model and head hold; 0: all
    std::shared_ptr<const TokenMap> map = nullptr;  // of a model of another vocabulary; null: it has the target's
    std::shared_ptr<const Translation> translation = nullptr;  // of a model of another tokenizer
    std::string inner;  // the drafter that says what the model is likely to draw; empty: none
    std::shared_ptr<const StateHead> state_head = nullptr;  // one that llama.cpp does not compute
    std::shared_ptr<LookaheadWindow> lookahead = nullptr;
};

// Of each drafter's file: make_NAME, and NAME_priors, what is believed of its tokens before any was verified.
#define SPECLLAMA_MAKE(name, origin, needs, summary)                  \
    std::unique_ptr<Drafter> make_##name(const DrafterParts & parts); \
    DrafterPriors name##_priors();
SPECLLAMA_DRAFTERS(SPECLLAMA_MAKE)
#undef SPECLLAMA_MAKE

// Throws std::invalid_argument for a name that the table does not have, or a part that is missing.
std::unique_ptr<Drafter> make_drafter(const std::string & name, const DrafterParts & parts);

// Of all of them, by Source.
std::vector<DrafterPriors> all_priors();

}  // namespace specllama
