"""Refuses a grammar that llama.cpp cannot parse: llama_cpp would put a null pointer into the sampler chain."""

from __future__ import annotations

from typing import Any

import llama_cpp


def require_grammar(llama: llama_cpp.Llama, grammar: Any) -> None:
    """Parse a ``LlamaGrammar``.

    Raises:
        ValueError: it does not parse, or has no rule named root.
    """
    text, root = (part.encode("utf-8") for part in (grammar._grammar, grammar._root))
    if b"\0" in text:
        raise ValueError("the grammar has a null character in it")
    sampler = llama_cpp.llama_sampler_init_grammar(llama._model.vocab, text, root)
    if not sampler:
        start = text.decode("utf-8")[:80]
        raise ValueError(f"the grammar does not parse as GBNF, or has no rule named {grammar._root}: {start!r}")
    llama_cpp.llama_sampler_free(sampler)
