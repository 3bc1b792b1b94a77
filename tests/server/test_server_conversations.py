"""Conversations over the server: what was said before is in memory, whoever asks in between."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

from exact import EXACT_CACHE
from served import Served, serving  # needs the extra
from test_tool_calls import END, ROUNDS

from specllama.cli import build_parser
from specllama.commands.arguments import load_llama

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, Saying, TinyFiles


@pytest.mark.parametrize("kind", ["target", "recurrent"])
def test_a_chat_beside_a_second_client(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> None:
    """No turn reads what an earlier one has read, and the metrics say why."""
    draft = tiny_files.good if kind == "target" else tiny_files.recurrent_good
    llm = make_llama(getattr(tiny_files, kind), draft, n_ctx=1024, cache_ram=64, **EXACT_CACHE)
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "logit_bias": {"300": 100}}  # so that it is known
    with serving(llm) as served:
        texts = ["the cat sat on the dog and in of a it is " * 3, "a fox is in of it and on the " * 4]
        tokens = [llm.tokenize(text.encode()) for text in texts]
        for turn in range(10):
            for number, prompt in enumerate(tokens):
                usage = served.complete(prompt, **asked, seed=turn)["usage"]
                read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                assert read <= 3 or turn == 0, (turn, number, usage)
                assert usage["completion_tokens"] == 8
                tokens[number] = [*prompt, *[300] * 8, 301, 302]
        metrics = served.metrics()
    assert metrics["specllama_prompts_recalled_total"] == 2 * 9
    recalled = metrics['specllama_prompt_tokens_recalled_total{place="ram"}']
    assert 0 < recalled <= metrics["specllama_prompt_tokens_reused_total"]
    assert 0 < metrics["specllama_prefixes_ram_bytes"] <= 64 << 20


@pytest.mark.parametrize("parallel", [1, 2])
def test_turns_of_a_long_chat_beside_another(saying: Saying, parallel: int) -> None:
    """As chats are sent: all messages each time. Of what was read before nothing is read again, so that the first token
    behind 2,000 others comes in less than a tenth of the time in which they were read.
    """
    llm = saying(["One", " two"], ROUNDS + END, n_ctx=4096, cache_ram=64, **EXACT_CACHE)
    chats = [[{"role": "user", "content": text}] for text in ("the cat " * 1000, "a fox is in it " * 20)]
    before = [0, 0]
    with serving(llm, max_parallel=parallel) as served:
        for turn in range(10):
            for number, messages in enumerate(chats):
                answer = served.post("/v1/chat/completions", messages=messages, temperature=0.0, max_tokens=8).json()
                usage = answer["usage"]
                read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                assert read <= usage["prompt_tokens"] - before[number], (turn, number, usage)
                if number == 0 and turn:
                    assert usage["prompt_tokens"] > 2000 and read < 200
                before[number] = usage["prompt_tokens"]
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "and the dog"}]
        if parallel == 1:  # else each has a slot of its own
            assert served.metrics()["specllama_prompts_recalled_total"] == 18


def test_the_option_of_the_server(tiny_files: TinyFiles) -> None:
    files = ["-m", str(tiny_files.target), "-c", "256"]
    for options, expected in (([], 1024), (["--cache-ram", "7"], 7), (["-cram", "-1"], -1)):
        llm = load_llama(build_parser().parse_args(["serve", *files, *options]))
        assert llm.cache_ram == expected
        llm.close()


def cached_and_all(served: Served, path: str, text: str) -> tuple[int, int]:
    """Ask in the dialect of this path. Gives how many tokens of the prompt were not read, and how many it has."""
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    if path in ("/completion", "/v1/completions"):
        asked = {"max_tokens": 4, "prompt": text}
    if path == "/v1/responses":
        asked = {"model": "tiny", "max_output_tokens": 16, "input": text}
    reply = served.post(path, temperature=0.0, **asked)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    timings, usage = answer["timings"], answer.get("usage", {})
    size = timings["cache_n"] + timings["prompt_n"]
    if path == "/completion":
        said = timings["cache_n"], answer["tokens_evaluated"]
    elif path == "/v1/messages":
        cached = usage["cache_read_input_tokens"]
        said = cached, usage["input_tokens"] + cached
    elif path == "/v1/responses":
        said = usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
    else:
        said = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
    assert said == (timings["cache_n"], size)
    return said


DIALECTS = ("/v1/completions", "/v1/chat/completions", "/completion", "/v1/messages", "/v1/responses")


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("place", ["ram", "disk"])
def test_all_say_how_much_was_not_read(
    make_llama: MakeLlama,
    tiny_files: TinyFiles,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    place: str,
    parallel: int,
) -> None:
    """Answers in each dialect, the log and the metrics, with copies from memory and, after a restart, from a folder."""
    caplog.set_level(logging.INFO, "specllama.requests")
    kept: dict[str, Any] = {"cache_ram": 64} if place == "ram" else {"cache_dir": tmp_path / "kept"}
    options: dict[str, Any] = {"draft": tiny_files.good, "n_ctx": 1024, **EXACT_CACHE, **kept}
    texts = {path: f"the {word} sat on " * 80 for path, word in zip(DIALECTS, "abcde", strict=True)}
    llm = make_llama(**options)
    with serving(llm, max_parallel=parallel) as served:
        for path, text in texts.items():
            cached, size = cached_and_all(served, path, text)
            assert size > 300 and cached < 30
        before = served.metrics()
    if place == "disk":
        llm.close()
        llm, before = make_llama(**options), dict.fromkeys(before, 0.0)
    caplog.clear()
    with serving(llm, max_parallel=parallel) as served:
        numbers = [cached_and_all(served, path, text) for path, text in texts.items()]
        served.wait_until_idle()
        metrics = served.metrics()
        served.wait_until(lambda: len(caplog.records) > len(texts))
    for cached, size in numbers:
        assert size > 300 and cached == size - 1
    names = ("prompt_tokens_reused_total", f'prompt_tokens_recalled_total{{place="{place}"}}', "prompt_tokens_total")
    reused, recalled, read = (metrics[f"specllama_{name}"] - before[f"specllama_{name}"] for name in names)
    assert (reused, read) == (sum(cached for cached, _ in numbers), len(numbers))
    assert reused * 0.7 < recalled <= reused
    lines = [record.getMessage() for record in caplog.records if "outcome=completed" in record.getMessage()]
    for line, (cached, size) in zip(lines, numbers, strict=True):
        assert f" prompt={size} reused={cached} " in line
