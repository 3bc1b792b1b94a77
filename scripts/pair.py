"""The arguments of scripts that take a pair of models, and how the models are opened."""

from __future__ import annotations

import argparse
from typing import Any

import specllama
from specllama.backend.cpu import default_threads


def add_pair(parser: argparse.ArgumentParser, *, needs_draft: bool = True) -> None:
    """Adds the models, ``--flash-attn`` and ``-t``."""
    parser.add_argument("target")
    parser.add_argument("draft", nargs=None if needs_draft else "?")
    parser.add_argument("--flash-attn", action=argparse.BooleanOptionalAction, help="as a Llama has it by itself")
    parser.add_argument("-t", "--threads", type=int, default=default_threads())


def opened(given: argparse.Namespace, n_ctx: int, **options: Any) -> specllama.Llama:
    """Open both models, with the arguments of `add_pair`."""
    return specllama.Llama(
        given.target,
        draft_model=given.draft,
        n_ctx=n_ctx,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        flash_attn=given.flash_attn,
        verbose=False,
        **options,
    )
