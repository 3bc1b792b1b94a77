"""The server with several requests at once."""

from __future__ import annotations

import collections
import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

import httpx
from exact import EXACT_CACHE
from served import Served, serving  # needs the extra
from test_serve_command import has_signals, health, process
from test_server_faults import LONG, send

import specllama
from specllama import cli, server
from specllama.drop_in import Watch

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PLACES = 3
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good, n_ctx=1024, num_draft_tokens="auto", **EXACT_CACHE)


@pytest.fixture
def served(llm: specllama.Llama) -> Iterator[Served]:
    with serving(llm, max_parallel=PLACES) as running:
        yield running


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds, each with its seed."""
    chat = {"messages": [{"role": "user", "content": "the cat"}]}
    kinds: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"temperature": 0.0}),
        (COMPLETIONS, {"temperature": 1.0, "num_draft_tokens": 0}),
        (COMPLETIONS, {"temperature": 0.8, "num_draft_tokens": 3, "verify": "block"}),
        (COMPLETIONS, {"temperature": 0.8, "dry_multiplier": 0.8, "stop": ["dog"]}),
        (COMPLETIONS, {"grammar": 'root ::= ("the " | "cat ")+'}),
        (COMPLETIONS, {"logprobs": 2, "logit_bias": {"7": 2.0}}),
        (COMPLETIONS, {"echo": True, "logprobs": 1}),
        (COMPLETIONS, {"mirostat_mode": 2, "temperature": 1.0}),
        (CHAT, {**chat, "temperature": 1.0}),
        (CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**chat, "response_format": {"type": "json_object", "schema": {"enum": ["the", "cat"]}}}),
        (CHAT, {**chat, "tools": [TOOL], "tool_choice": "required"}),
    ]
    return [
        (
            path,
            {"seed": seed, "max_tokens": 16, **({"prompt": f"the cat {seed}"} if path == COMPLETIONS else {}), **own},
        )
        for seed, (path, own) in enumerate(kinds * 2)
    ]


def answer_to(served: Served, path: str, body: dict[str, Any]) -> Any:
    """What was said, and with which probabilities."""
    response = served.post(path, **body)
    assert response.status_code == 200, response.text
    for call in response.json()["choices"][0].get("message", {}).get("tool_calls", []):
        assert call["id"].startswith("call_")
    return json.loads(re.sub(r'"call_[^"]*"', '"call"', response.text))["choices"]


def without_rounding(value: Any) -> Any:
    """Probabilities of a token may differ in their last bits: other texts are in the batch."""
    if isinstance(value, float):
        return pytest.approx(value, abs=2e-3)
    if isinstance(value, dict):
        return {key: without_rounding(part) for key, part in value.items()}
    return list(map(without_rounding, value)) if isinstance(value, list) else value


def metric(served: Served, name: str) -> float:
    return served.metrics()[f"specllama_{name}"]


@contextlib.contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Texts wait before their next round until the event is set, or their client has left."""
    go_on, poll = threading.Event(), Watch.poll

    def wait(watch: Watch) -> None:
        deadline = time.monotonic() + 30
        while not go_on.is_set() and not watch._stopped:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        poll(watch)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "poll", wait)
        try:
            yield go_on
        finally:
            go_on.set()


def test_each_answer_is_the_one_of_the_request_alone(llm: specllama.Llama) -> None:
    with serving(llm) as served:
        alone = [answer_to(served, path, body) for path, body in requests()]
    with serving(llm, max_parallel=4) as served, ThreadPoolExecutor(8) as clients:
        together = list(clients.map(lambda request: answer_to(served, *request), requests()))
    counters = llm.engine.texts.counters
    assert counters is not None and counters.most_texts > 1
    for request, found, expected in zip(requests(), together, alone, strict=True):
        assert found == without_rounding(expected), request


def test_streams_at_once(served: Served) -> None:
    bodies = [{"prompt": "the cat", "max_tokens": 20, "seed": seed, "return_origins": True} for seed in range(6)]
    alone = [answer_to(served, COMPLETIONS, {**body})[0]["text"] for body in bodies]
    with ThreadPoolExecutor(6) as clients:
        streams = list(clients.map(lambda body: served.events(COMPLETIONS, **body), bodies))
    assert ["".join(event["choices"][0]["text"] for event in events) for events in streams] == alone
    for events in streams:
        assert sum(len(event["tokens"]) for event in events) == events[-1]["timings"]["predicted_n"] == 20


def test_a_short_answer_does_not_wait_for_a_long_one(served: Served) -> None:
    with served.client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as long:
        lines = long.iter_lines()
        next(lines)
        for seed in range(4):
            assert served.complete(seed=seed, max_tokens=4)["timings"]["predicted_n"] == 4
        assert metric(served, "running") == 1
        assert metric(served, 'generations_total{outcome="completed"}') == 4
    served.wait_until_idle()


def test_so_many_at_once_and_the_others_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = served.app.state.worker
    with held(monkeypatch) as go_on, ThreadPoolExecutor(PLACES + 2) as clients:
        replies = [clients.submit(served.complete, seed=seed) for seed in range(PLACES + 2)]
        served.wait_until(lambda: worker.num_waiting == 2)
        assert metric(served, "running") == metric(served, "max_parallel") == PLACES
        assert metric(served, "waiting") == 2
        health = served.client.get("/health").json()
        assert health == {"status": "ok", "running": PLACES, "waiting": 2, "max_parallel": PLACES}
        go_on.set()
        assert all(reply.result()["choices"] for reply in replies)
    served.wait_until_idle()
    assert worker.outcomes["completed"] == PLACES + 2


def test_a_full_line_is_a_503(llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(llm, max_parallel=2, max_waiting=1) as served, ThreadPoolExecutor(3) as clients:
        worker = served.app.state.worker
        with held(monkeypatch) as go_on:
            replies = [clients.submit(served.complete) for _ in range(3)]
            served.wait_until(lambda: worker.num_running + worker.num_waiting == 3)
            refused = served.post(COMPLETIONS, **LONG)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            go_on.set()
            assert len({reply.result()["choices"][0]["text"] for reply in replies}) == 1
        assert worker.outcomes["refused"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(served: Served, stream: bool) -> None:
    worker = served.app.state.worker
    expected = served.complete()["choices"]
    body = json.dumps({**LONG, "stream": stream}).encode()
    staying = [send(served, COMPLETIONS, json.dumps({**LONG, "seed": seed}).encode()) for seed in range(PLACES - 1)]
    leaving = send(served, COMPLETIONS, body)
    served.wait_until(lambda: worker.num_running == PLACES)
    leaving.close()
    served.wait_until(lambda: worker.outcomes["stopped"] == 1)
    assert served.complete()["choices"] == expected
    assert worker.outcomes["completed"] == 2  # before those that stay, which had all the time
    for connection in staying:
        connection.close()
    served.wait_until_idle()
    assert worker.outcomes["stopped"] == PLACES
    assert worker.outcomes["failed"] == 0


def test_whoever_waits_takes_the_place_of_one_that_leaves(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = served.app.state.worker
    with held(monkeypatch):
        running = [send(served, COMPLETIONS, json.dumps(LONG).encode()) for _ in range(PLACES)]
        served.wait_until(lambda: worker.num_running == PLACES)
        waiting = send(served, COMPLETIONS, json.dumps({**LONG, "max_tokens": 5}).encode())
        served.wait_until(lambda: worker.num_waiting == 1)
        running[1].close()
        served.wait_until(lambda: worker.num_waiting == 0 and worker.outcomes["stopped"] == 1)
        assert worker.num_running == PLACES
    assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200")
    for connection in (waiting, running[0], running[2]):
        connection.close()
    served.wait_until_idle()


def test_a_client_that_leaves_while_another_reads_the_same_prompt(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one of them decodes it: the other one waits for that, and must not wait any longer than its client."""
    go_on, poll, num_polled = threading.Event(), Watch.poll, collections.Counter[Watch]()

    def hold_in_the_prompt(watch: Watch) -> None:
        num_polled[watch] += 1
        while num_polled[watch] > 2 and not go_on.is_set() and not watch._stopped:
            time.sleep(0.001)
        poll(watch)

    monkeypatch.setattr(Watch, "poll", hold_in_the_prompt)
    body = json.dumps({"prompt": "the cat " * 150, "max_tokens": 4}).encode()
    with serving(make_llama(n_ctx=1024, n_batch=64), max_parallel=2) as served:
        worker = served.app.state.worker
        try:
            first = send(served, COMPLETIONS, body)
            served.wait_until(lambda: 3 in num_polled.values())
            second = send(served, COMPLETIONS, body)
            served.wait_until(lambda: len(num_polled) == 2 and min(num_polled.values()) >= 2)
            time.sleep(0.2)  # it waits by now
            second.close()
            served.wait_until(lambda: worker.outcomes["stopped"] == 1)
        finally:
            go_on.set()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
        first.close()


def test_errors_of_one_are_nobody_elses(served: Served) -> None:
    good = [{"prompt": f"the cat {seed}", "max_tokens": 20, "seed": seed, "temperature": 1.0} for seed in range(12)]
    bad: list[dict[str, Any]] = [
        {"prompt": "the cat " * 2000},
        {"prompt": "the cat", "grammar": "broken"},
        {"prompt": [10**6]},
        {"prompt": "the cat", "dry_multiplier": 1.0, "dry_sequence_breakers": [""]},
        {"prompt": "the cat", "mirostat_mode": 1, "xtc_probability": 0.5, "temperature": 1.0},
    ]
    alone = [answer_to(served, COMPLETIONS, body) for body in good]
    with ThreadPoolExecutor(8) as clients:
        errors = [clients.submit(served.post, COMPLETIONS, **body) for body in bad * 4]
        answers = list(clients.map(lambda body: answer_to(served, COMPLETIONS, body), good * 2))
    assert answers == alone * 2
    assert [error.result().status_code for error in errors] == [400] * len(errors)


def test_metrics_add_up_over_all_places(served: Served) -> None:
    bodies = [{"prompt": f"the cat {seed}", "max_tokens": 20, "seed": seed} for seed in range(12)]
    with ThreadPoolExecutor(6) as clients:
        found = [
            reply.json()["timings"] for reply in clients.map(lambda body: served.post(COMPLETIONS, **body), bodies)
        ]
    served.wait_until_idle()
    metrics = served.metrics()
    for name, key in (
        *(("prompt_tokens", "prompt_n"), ("prompt_tokens_reused", "cache_n"), ("generated_tokens", "predicted_n")),
        *(("draft_tokens", "draft_n"), ("accepted_tokens", "draft_n_accepted")),
    ):
        assert metrics[f"specllama_{name}_total"] == sum(timings[key] for timings in found)
    for phase in ("prompt", "draft", "verify", "sample", "rollback"):
        seconds = metrics[f'specllama_seconds_total{{phase="{phase}"}}']
        assert seconds * 1e3 == pytest.approx(sum(timings[f"{phase}_ms"] for timings in found))
    assert served.llm.total_stats.num_tokens == 12 * 20


def test_conversations_find_what_was_said(served: Served) -> None:
    """In whatever order they come, also if there is one for each place."""
    talks = [[{"role": "user", "content": f"{word} sat on the dog and " * 4}] for word in ("cat", "fox", "dog")]
    assert len(talks) == PLACES
    num_tokens = [0] * PLACES
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)):
        for talk in order:
            reply = served.post(CHAT, messages=talks[talk], max_tokens=8, temperature=0.0).json()
            assert reply["timings"]["cache_n"] >= num_tokens[talk]
            num_tokens[talk] = reply["usage"]["prompt_tokens"]
            talks[talk] += [reply["choices"][0]["message"], {"role": "user", "content": "the dog sat on the cat"}]


def test_a_prompt_is_found_at_another_place(served: Served) -> None:
    prompt = "the cat sat on the dog and " * 4
    with served.client.stream("POST", COMPLETIONS, json={**LONG, "prompt": prompt, "stream": True}) as long:
        next(long.iter_lines())  # its place is taken
        assert served.complete(prompt + "it")["timings"]["cache_n"] > 20
    served.wait_until_idle()


def test_a_seed_of_the_llama_gives_each_request_its_own(make_llama: MakeLlama) -> None:
    texts: list[list[str]] = []
    for max_parallel in (1, PLACES):
        with (
            serving(make_llama(seed=7), max_parallel=max_parallel) as served,
            ThreadPoolExecutor(PLACES) as clients,
        ):
            replies = [clients.submit(served.complete, temperature=1.0) for _ in range(6)]
            texts.append(sorted(reply.result()["choices"][0]["text"] for reply in replies))
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_a_memory_that_cannot_be_shared(make_llama: MakeLlama, tiny_files: TinyFiles, early_release: None) -> None:
    llm = make_llama(tiny_files.recurrent)
    with pytest.warns(UserWarning, match="one request after the other instead of 4 at once"):
        app = server.create_app(llm, name="tiny", max_parallel=4)
    assert app.state.worker.max_running == 1
    app.state.worker.close()


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (10**6, ValueError), ("4", TypeError)])
def test_a_number_of_requests_that_cannot_be(make_llama: MakeLlama, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_parallel"):
        server.create_app(make_llama(), name="tiny", max_parallel=value)


@has_signals
def test_a_signal_ends_all_of_them(tiny_files: TinyFiles) -> None:
    with process(tiny_files, "--parallel", "2") as (running, url), ThreadPoolExecutor(3) as clients:
        assert health(url).json()["max_parallel"] == 2
        replies = [clients.submit(httpx.post, url + COMPLETIONS, json=LONG, timeout=60) for _ in range(3)]
        while httpx.get(url + "/health").json()["waiting"] != 1:
            pass
        running.send_signal(signal.SIGTERM)
        assert [reply.result().status_code for reply in replies] == [503] * 3
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    first, last = errors.splitlines()
    assert first == "ending: 2 answers under way are stopped, 1 waiting requests get 503"
    assert last.startswith("ended; requests: 0 completed, 0 failed, ")


def test_the_option_is_checked(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "-m", str(tiny_files.target), "--parallel", "0"]) == 2
    assert "--parallel: 0 is too small" in capsys.readouterr().err
