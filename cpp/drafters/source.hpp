// The table of drafters. A new drafter needs a file of its own in drafters/, one in bindings/drafters/, and a line
// here. This file depends on neither llama.cpp nor Python.
//
// The name in a line also names the drafter's tokens in the statistics, and two functions: NAME_priors() in the
// drafter's file (see table.hpp), and bind_NAME_drafter() in the file of its binding.
#pragma once

#include <array>
#include <cstddef>

// X(name; the origin that users see for the drafter's tokens; a description of these tokens)
#define SPECLLAMA_DRAFTERS(X)                                                            \
    X(model, "draft", "what a second, smaller model says")                               \
    X(lookup, "lookup", "what followed when the end of the text occurred before")        \
    X(function, "draft", "what a function of the user's says")                           \
    X(grammar, "draft", "what a grammar leaves no choice about")                         \
    X(head, "draft", "what one layer says that reads the target's hidden states")        \
    X(block_head, "draft", "what a head says of several places in one decode")           \
    X(foreign, "draft", "what a smaller model of another tokenizer says")                \
    X(state_head, "draft", "what a head says that reads the target's final state alone") \
    X(assistant, "draft", "what a head says that reads the target's memory")             \
    X(lookahead, "draft", "what the target has said in a window beside the text")

namespace specllama {

#define SPECLLAMA_NAME(name, origin, summary) name,
enum class Source { SPECLLAMA_DRAFTERS(SPECLLAMA_NAME) };
#undef SPECLLAMA_NAME
#define SPECLLAMA_ONE(name, origin, summary) +1
constexpr std::size_t num_sources = 0 SPECLLAMA_DRAFTERS(SPECLLAMA_ONE);
#undef SPECLLAMA_ONE

struct DrafterAbout {
    const char * name;
    const char * origin;
    const char * summary;
};

#define SPECLLAMA_LINE(name, origin, summary) DrafterAbout{#name, origin, summary},
constexpr std::array<DrafterAbout, num_sources> drafters{{SPECLLAMA_DRAFTERS(SPECLLAMA_LINE)}};
#undef SPECLLAMA_LINE

constexpr const DrafterAbout & about(Source source) { return drafters[static_cast<std::size_t>(source)]; }

}  // namespace specllama
