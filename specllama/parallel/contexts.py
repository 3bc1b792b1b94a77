"""The native side of many texts: contexts with room for several sequences, and what decodes these together."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from typing import Any

import llama_cpp
from llama_cpp import _internals

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.backend.kernel_use import use_of
from specllama.backend.libllama import API
from specllama.drafts.draft import Draft
from specllama.models.loading import one_at_a_time


class Contexts:
    """A context of the target, and one of a draft model, besides those that the Llamas have.

    The weights are shared. Each context has ``count`` sequences of the Llama's ``n_ctx`` tokens in one cache, so that
    prompts which begin alike share their cells. A cache with room for fewer tokens has texts wait for each other.

    Args:
        llama: the target.
        draft: what drafts for it.
        count: how many texts there may be.
        cache_tokens: how many tokens of them a cache holds; None: all that they may have.

    Raises:
        MemoryError: there is no room for the caches.
        ValueError: ``cache_tokens`` is less than one text may need.
    """

    def __init__(self, llama: BaseLlama, draft: Draft | None, count: int, cache_tokens: int | None = None) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self._target = self._decoder(llama, "target", count, cache_tokens)
            self._draft = self._draft_decoder(draft, count, cache_tokens)
            self.scheduler = _core.Scheduler(self._target, self._draft)
            self._stack.callback(self.scheduler.close)
        except BaseException:
            self._stack.close()
            raise

    def sequences(self, number: int) -> tuple[_core.Sequence, _core.Sequence | None]:
        """The target's and the draft's sequence of one place, which may be made once."""
        return (
            _core.Sequence(self._target, number),
            None if self._draft is None else _core.Sequence(self._draft, number),
        )

    def end(self) -> None:
        """Give ClosedError to whatever is under way, and to who asks later."""
        self.scheduler.close()

    def close(self) -> None:
        """Free both. Whatever is under way gets ClosedError, but must not read logits meanwhile."""
        self._stack.close()

    def _draft_decoder(self, draft: Draft | None, count: int, cache_tokens: int | None) -> _core.Decoder | None:
        if draft is None or not draft.models or draft.unusable is not None:
            return None
        (llama,) = draft.models.values()
        try:
            self._stack.enter_context(draft.kept())
            return self._decoder(llama, "draft", count, cache_tokens)
        except _core.ClosedError:  # meanwhile, by its owner
            draft.notice_closing()
            return None

    def _decoder(self, llama: BaseLlama, name: str, count: int, cache_tokens: int | None) -> _core.Decoder:
        n_ctx = llama._n_ctx  # the owner of a draft may close its context at any time
        size = n_ctx * count
        if cache_tokens is not None:
            if cache_tokens < n_ctx:
                raise ValueError(
                    f"cache_tokens={cache_tokens} is less than n_ctx={n_ctx} of the {name}, which one text may "
                    "fill: take a larger cache_tokens (--cache-tokens), or a smaller n_ctx (-c)"
                )
            size = min(size, cache_tokens)
        params: Any = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_ctx, params.n_seq_max, params.kv_unified = max(size, count), count, True
        params.n_batch = max(params.n_batch, count)  # llama.cpp makes room for a row of each text, and asserts it
        if hasattr(params, "n_rs_seq"):
            params.n_rs_seq = 0
        if use_of(llama).num_bytes and hasattr(params, "flash_attn_type"):
            # Without it each text goes through the cells of all: our kernels skip them in flash attention alone.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        try:
            with one_at_a_time(), _quiet(llama):
                context = _internals.LlamaContext(model=llama._model, params=params, verbose=llama.verbose)
        except ValueError as error:
            raise MemoryError(
                f"there is no room for {count} texts of n_ctx={n_ctx} tokens with the {name}: take a smaller "
                "max_parallel (--parallel) or cache_tokens (--cache-tokens), or create the Llama with a smaller n_ctx "
                "(-c)"
            ) from error
        self._stack.callback(context.close)
        _apply_lora(llama, context.ctx)
        decoder = _core.Decoder(API, int(context.ctx), name, n_ctx)
        self._stack.callback(decoder.close)
        return decoder


@contextlib.contextmanager
def _quiet(llama: BaseLlama) -> Iterator[None]:
    """llama.cpp warns of nothing: it would take the room of all texts for that of one. A verbose Llama lets it."""
    logger = logging.getLogger("llama-cpp-python")
    level = logger.level
    if not llama.verbose:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _apply_lora(llama: BaseLlama, context: Any) -> None:
    """Does what llama_cpp.Llama does to its own context."""
    adapter = llama._lora_adapter
    if adapter is None:
        return
    if hasattr(llama_cpp, "llama_set_adapters_lora"):
        kind: Any = llama_cpp.llama_adapter_lora_p_ctypes
        adapters, scales = (kind * 1)(adapter), (ctypes.c_float * 1)(llama.lora_scale)
        failed = llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales)
    else:  # before 0.3.17
        failed = llama_cpp.llama_set_adapter_lora(context, adapter, llama.lora_scale)
    if failed:
        raise RuntimeError(f"the LoRA adapter {llama.lora_path} cannot be applied to the texts' context")
