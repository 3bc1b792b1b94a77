"""Many clients at once. Some leave in the middle, one sends garbage, one all of JSON-Schema-Test-Suite's schemas."""

from __future__ import annotations

import collections
import json
import random
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from needed import imported

imported("fastapi")

import httpx
from exact import EXACT_CACHE
from resident import resident_megabytes
from served import Served, serving  # needs the extra
from test_schema_suite import ENFORCED, cases, jsonschema, strict
from test_server_faults import GARBAGE, send

from specllama.server.lender import Lender
from specllama.server.request_limits import MAX_BODY
from specllama.server.serving import give_back_freed_memory

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    from specllama.drop_in import Watch
    from specllama.server.chats import ChatRequest
    from specllama.server.completions import CompletionRequest
    from specllama.server.job import Item, Work

pytestmark = pytest.mark.long

NUM_REQUESTS = 200
CUT_OFF = 0.2
MOST_GROWTH = 20.0  # MB


def a_request(number: int) -> tuple[str, dict[str, Any]]:
    """Requests of all kinds: prompts that share beginnings, other options, streams; each with its seed."""
    rng = random.Random(number)
    words = rng.choices("the cat dog fox sat on in and of a it is".split(), k=rng.randint(3, 40))
    body: dict[str, Any] = {
        "max_tokens": rng.randint(8, 60),
        "temperature": rng.choice([0.0, 0.8, 1.0]),
        "seed": number,
        "stream": rng.random() < 0.5,
        "num_draft_tokens": rng.choice([None, None, 0, 2, "auto"]),
    }
    if rng.random() < 0.5:
        return "/v1/completions", {**body, "prompt": "the cat " + " ".join(words), "stop": rng.choice([None, "dog"])}
    messages = [{"role": "system", "content": "the cat"}, {"role": "user", "content": " ".join(words)}]
    return "/v1/chat/completions", {**body, "messages": messages}


def text_of(client: httpx.Client, number: int) -> str:
    """The answer's text."""
    path, body = a_request(number)
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        choice = response.json()["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    return "".join(choice.get("text", "") or choice.get("delta", {}).get("content", "") for choice in choices)


def bodies_at_the_limits(n_ctx: int) -> list[tuple[str, bytes, int]]:
    """Paths, bodies, and the statuses that they get: of each limit the most that is taken, and one more."""
    body = {"prompt": "the cat", "max_tokens": 4, "temperature": 0.0, "seed": 1}
    small = json.dumps(body).encode()
    breakers = [f"{i:040}" for i in range(64)]
    most = {**body, "logprobs": 20, "dry_multiplier": 0.5, "dry_sequence_breakers": breakers, "stop": ["no"] * 16_000}
    chat = {**body, "messages": [{"role": "user", "content": "a"}] * (n_ctx // 4 + 1)}
    del chat["prompt"]
    return [
        ("/v1/completions", small.ljust(MAX_BODY), 200),
        ("/v1/completions", small.ljust(MAX_BODY + 1), 413),
        ("/v1/completions", json.dumps(most).encode(), 200),
        ("/v1/completions", json.dumps({**most, "stop": ["no"] * 20_000}).encode(), 413),
        (
            "/v1/completions",
            json.dumps({**most, "seed": None, "dry_sequence_breakers": [*breakers, "x"]}).encode(),
            400,
        ),
        ("/v1/completions", json.dumps({**body, "prompt": [5] * (n_ctx - 4)}).encode(), 200),
        ("/v1/completions", json.dumps({**body, "prompt": "a" * (64 * n_ctx + 1)}).encode(), 400),
        ("/v1/chat/completions", json.dumps(chat).encode(), 400),
    ]


def at_the_limits(client: httpx.Client, done: threading.Event, n_ctx: int) -> Iterator[tuple[int, int, str]]:
    """Sends such bodies until the others are done, each at least once. Gives statuses, as wanted and as they came."""
    while True:
        for path, body, status in bodies_at_the_limits(n_ctx):
            reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
            yield status, reply.status_code, reply.text[:300]
        if done.is_set():
            return


def ask_for_schemas(client: httpx.Client, remainder: int) -> collections.Counter[str]:
    """Sends every second schema of the suite as a strict one. Each is enforced, or refused with the reason."""
    found = collections.Counter[str]()
    for number, (name, schema, *_) in enumerate(cases()):
        if number % 2 != remainder:
            continue
        body = {
            "messages": [{"role": "user", "content": "the cat"}],
            "max_tokens": 40,
            "seed": NUM_REQUESTS + number,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        }
        reply = client.post("/v1/chat/completions", json=body)
        if reply.status_code == 400:
            assert "cannot be enforced" in reply.text, f"{name}: {reply.text}"
            found["refused"] += 1
            continue
        assert reply.status_code == 200, f"{name}: {reply.text}"
        found["enforced"] += 1
        assert "warnings" not in reply.json(), f"{name}: {reply.text}"
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            found["finished"] += 1
            text = choice["message"]["content"]
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), f"{name}: {text}"
    return found


class Leaver:
    """A client that leaves before it has its answer, and what the model does for it.

    With an even number the model waits, in the middle of its answer, until the client has left. The others leave when
    they like: before their turn, or when the answer is all but there.
    """

    def __init__(self, number: int) -> None:
        self.path, body = a_request(number)
        # Nothing ends it early.
        self.body = {**body, "max_tokens": 200, "stop": None, "logit_bias": {"2": -100}}
        self.waited_for = number % 2 == 0
        self._in_the_middle = threading.Event()

    def ask(self, served: Served, client: httpx.Client) -> None:
        """Send the request, and leave."""
        self._in_the_middle.clear()
        if self.body["stream"]:
            with client.stream("POST", self.path, json=self.body) as response:
                next(response.iter_lines())
        else:
            connection = send(served, self.path, json.dumps(self.body).encode())
            assert not self.waited_for or self._in_the_middle.wait(60)
            connection.close()

    def slowed(self, work: Work) -> Work:
        """The work, which waits for the client to leave."""

        def wait_in_the_middle(watch: Watch) -> Generator[Item, None, None]:
            poll, sent = watch.poll, not self.body["stream"]

            def poll_later() -> None:
                if sent and watch.stats().num_tokens > 0:
                    self._in_the_middle.set()
                    deadline = time.monotonic() + 60
                    while not watch._stopped and time.monotonic() < deadline:
                        time.sleep(0.001)
                poll()

            watch.poll = poll_later  # type: ignore[method-assign]
            for item in work(watch):
                yield item
                sent = True

        return wait_in_the_middle if self.waited_for else work


def followed(served: Served, leavers: dict[int, Leaver], monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """Counts the work that reaches the model: that of requests, and of garbage, which has no seed."""
    worker, started = served.app.state.worker, collections.Counter[str]()
    start, work_of = worker.start, Lender.work

    seeds: list[int | None] = []  # of the work that starts next, in the thread of the event loop

    def work(lender: Lender, request: CompletionRequest | ChatRequest) -> Any:
        seeds.append(request.seed)
        answers = work_of(lender, request)
        return leavers[request.seed].slowed(answers) if request.seed in leavers else answers

    def start_and_count(work: Any) -> Any:
        seed = seeds.pop()
        job = start(work)
        started["garbage" if seed is None else "requests"] += 1
        return job

    monkeypatch.setattr(Lender, "work", work)
    worker.start = start_and_count
    return started


def garbage(client: httpx.Client, done: threading.Event) -> Iterator[int]:
    """Sends what no server wants until the others are done. Gives the statuses."""
    while not done.is_set():
        for path, body in GARBAGE:
            yield client.post(path, content=body, headers={"Content-Type": "application/json"}).status_code


class Storm(NamedTuple):
    """What came back."""

    texts: dict[int, str]
    garbage: list[int]  # statuses
    schemas: collections.Counter[str]


def storm(served: Served, numbers: range, num_clients: int, leavers: dict[int, Leaver], remainder: int) -> Storm:
    """All requests from so many clients at once, and three more clients.

    They send garbage, bodies at the limits, and the schemas with the numbers that leave this `remainder`.
    """
    done = threading.Event()
    with httpx.Client(base_url=served.url, timeout=120) as client, ThreadPoolExecutor(num_clients + 3) as clients:
        schemas = clients.submit(ask_for_schemas, client, remainder)
        limits = clients.submit(lambda: list(at_the_limits(client, done, served.llm.n_ctx())))
        statuses = clients.submit(lambda: list(garbage(client, done)))
        answers: dict[int, Any] = {
            number: clients.submit(leavers[number].ask, served, client)
            if number in leavers
            else clients.submit(text_of, client, number)
            for number in numbers
        }
        try:
            texts = {number: answer.result() for number, answer in answers.items() if number not in leavers}
            assert [answers[number].result() for number in leavers] == [None] * len(leavers)
            with_schemas = schemas.result()
        finally:
            done.set()
        for wanted, came, text in limits.result():
            assert came == wanted, text
        return Storm(texts, statuses.result(), with_schemas)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux' /proc")
@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
@pytest.mark.parametrize(("max_parallel", "num_clients"), [(1, 8), (4, 16)])
def test_everybody_gets_the_answer_that_the_model_gives_alone(
    make_llama: MakeLlama,
    tiny_files: TinyFiles,
    monkeypatch: pytest.MonkeyPatch,
    max_parallel: int,
    num_clients: int,
) -> None:
    give_back_freed_memory()
    numbers = range(NUM_REQUESTS)
    leavers = {number: Leaver(number) for number in random.Random(0).sample(numbers, int(CUT_OFF * NUM_REQUESTS))}
    llm = make_llama(draft=tiny_files.good, num_draft_tokens="auto", **EXACT_CACHE)
    with serving(llm) as served:
        alone = {number: text_of(served.client, number) for number in numbers if number not in leavers}
    with serving(llm, max_waiting=NUM_REQUESTS, max_parallel=max_parallel) as served:
        started = followed(served, leavers, monkeypatch)
        storms, resident = [], []
        for remainder in range(2):  # what is allocated once is there after the first
            storms.append(storm(served, numbers, num_clients, leavers, remainder))
            served.wait_until_idle()
            resident.append(resident_megabytes())
        again = text_of(served.client, min(alone))
        outcomes = served.app.state.worker.outcomes
    for texts, statuses, _ in storms:
        assert texts == alone
        assert len(statuses) >= len(GARBAGE)
        assert all(400 <= status < 500 for status in statuses)
    schemas = storms[0].schemas + storms[1].schemas
    enforced = sum(strict(schema) is None for _, schema, *_ in cases())  # a newer llguidance enforces more
    assert schemas["enforced"] == enforced >= ENFORCED
    assert schemas["enforced"] + schemas["refused"] == len(cases())
    assert schemas["finished"] > 10
    assert again == alone[min(alone)]
    # Everybody is counted once, and whoever left in the middle for sure has stopped the model.
    assert outcomes["failed"] == started["garbage"] > 0
    assert outcomes["completed"] + outcomes["stopped"] == started["requests"]
    assert outcomes["completed"] >= 2 * len(alone) + 1
    waited_for = [leaver.body["stream"] for leaver in leavers.values() if leaver.waited_for]
    assert outcomes["stopped"] >= 2 * len(waited_for)
    assert set(waited_for) == {True, False}
    assert outcomes["refused"] == 0
    first, second = resident
    assert first is None or second is None or second - first < MOST_GROWTH, f"{first:.1f} MB, then {second:.1f}"
