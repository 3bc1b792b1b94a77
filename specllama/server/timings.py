"""The cost of a request, in llama-server's fields and ours."""

from __future__ import annotations

from typing import Any

from specllama.stats import Stats


def timings(stats: Stats) -> dict[str, Any]:
    """The ``timings`` of a response. The names up to ``draft_n_accepted`` are llama-server's, the others ours.

    Times are in milliseconds. ``speedup`` and ``plain_per_second`` need the time of plain decoding, which ``"auto"``
    measures; they are None without ``"auto"``.
    """
    num_prompt = stats.num_prompt_tokens - stats.num_prompt_tokens_reused
    return {
        "cache_n": stats.num_prompt_tokens_reused,
        **_rates("prompt", num_prompt, stats.prompt_seconds),
        **_rates("predicted", stats.num_tokens, stats.total_seconds - stats.prompt_seconds),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted_tokens,
        "acceptance_rate": stats.acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_n_per_pos": list(stats.num_draft_tokens_per_pos),
        "draft_n_accepted_per_pos": list(stats.num_accepted_tokens_per_pos),
        "draft_ms": stats.draft_seconds * 1e3,
        "verify_ms": stats.verify_seconds * 1e3,
        "sample_ms": stats.sample_seconds * 1e3,
        "rollback_ms": stats.rollback_seconds * 1e3,
        "speedup": stats.realised_speedup or None,
        "plain_per_second": 1.0 / stats.plain_seconds if stats.plain_seconds else None,
        "verify": stats.verify,
        "fallback_reason": stats.fallback_reason,
    }


def _rates(name: str, tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / tokens if tokens else 0.0,
        f"{name}_per_second": tokens / seconds if seconds > 0 else 0.0,
    }
