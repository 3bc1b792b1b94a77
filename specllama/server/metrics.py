"""The metrics that Prometheus reads at /metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama import Llama, Stats

from .worker import Worker

_PHASES = ("prompt", "draft", "verify", "sample", "rollback")


class Metrics(Collector):
    """Reads the counters of the Llama's ``total_stats`` and of the worker whenever Prometheus collects them.

    The numbers of a generation are counted when it has ended, also if it failed or was stopped.
    """

    def __init__(self, llm: Llama, worker: Worker) -> None:
        self._llm = llm
        self._worker = worker

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """All metrics except the counts of requests."""
        stats = self._llm.total_stats
        decoded = stats.num_prompt_tokens - stats.num_prompt_tokens_reused
        yield _count("prompt_tokens", "Tokens of prompts that were decoded.", decoded)
        yield _count("prompt_tokens_reused", "Tokens of prompts that were kept.", stats.num_prompt_tokens_reused)
        yield _recalled(stats)
        yield _count("generated_tokens", "Tokens generated.", stats.num_tokens)
        yield _count("draft_rounds", "Rounds that drafted.", stats.num_drafts)
        yield _count("draft_tokens", "Tokens drafted.", stats.num_draft_tokens)
        yield _count("accepted_tokens", "Drafted tokens that the target accepted.", stats.num_accepted_tokens)
        yield _per_position("draft_tokens", "Tokens drafted", stats.num_draft_tokens_per_pos)
        yield _per_position("accepted_tokens", "Drafted tokens accepted", stats.num_accepted_tokens_per_pos)
        seconds = CounterMetricFamily("specllama_seconds", "Seconds spent, by phase.", labels=["phase"])
        for phase in _PHASES:
            seconds.add_metric([phase], getattr(stats, f"{phase}_seconds"))
        yield seconds
        store = self._llm.engine.store
        yield _count("prompts_recalled", "Prompts that went on from copies of earlier texts.", store.num_recalled)
        yield GaugeMetricFamily(
            "specllama_prefixes_ram_bytes", "The memory of the copies of earlier texts, in bytes.", store.ram.num_bytes
        )
        generations = CounterMetricFamily("specllama_generations", "Generations, by their end.", labels=["outcome"])
        for outcome, number in self._worker.outcomes.items():
            generations.add_metric([outcome], number)
        yield generations
        yield GaugeMetricFamily("specllama_running", "Requests that are being answered.", self._worker.num_running)
        yield GaugeMetricFamily("specllama_waiting", "Requests that wait for the model.", self._worker.num_waiting)
        yield GaugeMetricFamily(
            "specllama_max_parallel", "The most requests that are answered at once.", self._worker.max_running
        )


def _count(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"specllama_{name}", text, value)


def _recalled(stats: Stats) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "specllama_prompt_tokens_recalled", "Reused tokens of prompts that came from copies.", labels=["place"]
    )
    family.add_metric(["ram"], stats.num_prompt_tokens_from_ram)
    family.add_metric(["disk"], stats.num_prompt_tokens_from_disk)
    return family


def _per_position(name: str, text: str, counts: Sequence[int]) -> CounterMetricFamily:
    family = CounterMetricFamily(
        f"specllama_{name}_per_position", f"{text}, by position in the draft (0 is the first).", labels=["position"]
    )
    for position, number in enumerate(counts):
        family.add_metric([str(position)], number)
    return family


class RequestsCounted:
    """Middleware that counts requests by endpoint and status. Unknown paths are counted as one endpoint."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry, endpoints: frozenset[str]) -> None:
        self._app = app
        self._endpoints = endpoints
        self._requests = Counter("specllama_requests", "HTTP requests.", ["endpoint", "status"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and counts its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        endpoint = scope["path"] if scope["path"] in self._endpoints else "other"

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.labels(endpoint, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counting_send)
