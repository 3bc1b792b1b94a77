"""Measures fixed numbers of draft tokens against plain decoding, greedily, on prompts of HumanEval.

    python scripts/measure.py -m qwen2.5-coder-1.5b:F16 -md qwen2.5-coder-0.5b:Q4_0 --prompts HumanEval.jsonl

Plain decoding and every number of draft tokens take turns on each prompt, forwards and backwards, in one process. A
speedup is a ratio of generated tokens per second on the same prompt; the prompt's own processing is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path

from specllama import Llama, Stats

INSTRUCTION = "Complete this Python function. Answer with the code only."


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, help="the target: a path or a catalog name")
    parser.add_argument("-md", "--draft-model", required=True, help="the draft: a path or a catalog name")
    parser.add_argument("--prompts", type=Path, required=True, help="HumanEval as JSON lines, with a field `prompt`")
    parser.add_argument("--limit", type=int, default=8, help="how many prompts (default 8)")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int, default=2, help="for single tokens and for batches alike")
    parser.add_argument("--num-draft-tokens", type=int, nargs="+", default=[3, 7, 15])
    return parser.parse_args()


def generate(llm: Llama, prompt: str, max_tokens: int, num_draft_tokens: int) -> tuple[str, Stats]:
    """One answer from an empty cache, and its statistics."""
    content = f"{INSTRUCTION}\n\n```python\n{prompt.rstrip()}\n```"
    llm.reset()
    answer = llm.create_chat_completion(
        [{"role": "user", "content": content}],
        max_tokens=max_tokens,
        temperature=0.0,
        num_draft_tokens=num_draft_tokens,
    )
    return answer["choices"][0]["message"]["content"], llm.stats


def main() -> None:
    """Measure and print."""
    args = parse()
    lines = itertools.islice(args.prompts.read_text().splitlines(), args.limit)
    prompts = [json.loads(line)["prompt"] for line in lines]
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
    llm = Llama(args.model, draft_model=args.draft_model, n_ctx=2048, verbose=False, **threads)
    modes = [0, *args.num_draft_tokens]
    speedups: dict[int, list[float]] = {mode: [] for mode in modes}
    generate(llm, prompts[0], 16, modes[-1])  # pages in both models
    for number, prompt in enumerate(prompts):
        order = modes if number % 2 == 0 else modes[::-1]
        runs = {mode: generate(llm, prompt, args.max_tokens, mode) for mode in order}
        plain_text, plain = runs[0]
        for mode, (text, stats) in runs.items():
            speedups[mode].append(stats.tokens_per_second / plain.tokens_per_second)
            generating = stats.total_seconds - stats.prompt_seconds
            outside = 1 - (stats.draft_seconds + stats.verify_seconds) / generating
            print(
                f"prompt {number}, {mode} draft tokens: {stats.tokens_per_second:.2f} t/s, {speedups[mode][-1]:.2f}x, "
                f"accepted {stats.acceptance_rate:.1%}, outside llama_decode {outside:.2%}, "
                f"{'same text' if text == plain_text else 'TEXT DIFFERS'}",
                flush=True,
            )
    for mode, values in speedups.items():
        print(f"{mode} draft tokens: mean {statistics.mean(values):.2f}x, {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
