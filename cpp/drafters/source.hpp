// The drafters' names. A new drafter needs a file of its own in drafters/, and a line here. This file depends on
// neither llama.cpp nor Python.
//
// The name of a line also names its tokens in the statistics, and two functions of the drafter's file (see table.hpp).
#pragma once

#include <array>
#include <cstddef>

// X(name; the origin of its tokens that users see; what it is made of: "text" (only the text, so that it can be chosen
// by its name), "model", "function", "grammar", "head" or "window"; what it drafts)
#define SPECLLAMA_DRAFTERS(X)                                                                    \
    X(model, "draft", "model", "what a second, smaller model says")                              \
    X(lookup, "lookup", "text", "what followed when the end of the text occurred before")        \
    X(function, "draft", "function", "what a function of the user's says")                       \
    X(grammar, "draft", "grammar", "what a grammar leaves no choice about")                      \
    X(head, "draft", "head", "what one layer says that reads the target's hidden states")        \
    X(block_head, "draft", "head", "what a head says of several places in one decode")           \
    X(foreign, "draft", "model", "what a smaller model of another tokenizer says")               \
    X(state_head, "draft", "head", "what a head says that reads the target's final state alone") \
    X(lookahead, "draft", "window", "what the target has said in a window beside the text")

namespace specllama {

#define SPECLLAMA_NAME(name, origin, needs, summary) name,
enum class Source { SPECLLAMA_DRAFTERS(SPECLLAMA_NAME) };
#undef SPECLLAMA_NAME
#define SPECLLAMA_ONE(name, origin, needs, summary) +1
constexpr std::size_t num_sources = 0 SPECLLAMA_DRAFTERS(SPECLLAMA_ONE);
#undef SPECLLAMA_ONE

struct DrafterAbout {
    const char * name;
    const char * origin;
    const char * needs;
    const char * summary;
};

#define SPECLLAMA_LINE(name, origin, needs, summary) DrafterAbout{#name, origin, needs, summary},
constexpr std::array<DrafterAbout, num_sources> drafters{{SPECLLAMA_DRAFTERS(SPECLLAMA_LINE)}};
#undef SPECLLAMA_LINE

constexpr const DrafterAbout & about(Source source) { return drafters[static_cast<std::size_t>(source)]; }

}  // namespace specllama
