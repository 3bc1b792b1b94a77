"""Conversations over the server: what was said before is in memory, whoever asks in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

from exact import EXACT_CACHE
from served import serving  # needs the extra
from test_tool_calls import END, ROUNDS

from specllama.cli import build_parser
from specllama.commands.arguments import load_llama

if TYPE_CHECKING:
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
