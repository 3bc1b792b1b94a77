"""Beginnings of questions. If the user gives no text, the target writes its own texts from these."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

STARTS = (
    *("Write", "Write a short story about", "Explain", "Explain how", "Translate into German:", "Summarize", "What is"),
    *("What are", "How do I", "How does", "Solve", "Why", "Give me", "Can you", "Implement a Python function that"),
    *("Write a Python class", "Fix the bug in", "Compose an email", "Describe", "Compare", "List", "Who was"),
    *("When did", "Calculate", "If a train", "Suppose", "Create", "Help me plan", "Imagine you are", "Act as"),
    *("Rewrite the sentence", "Extract", "Tell me about", "Should I", "Draft a", "Design a", "Prove that"),
    *("A farmer has", "What would happen if", "Recommend", "Write a SQL query that", "Refactor", "Write a test for"),
)
TOPICS = (
    *("history", "physics", "cooking", "travel", "law", "biology", "poetry", "finance", "mathematics", "software"),
    *("geography", "philosophy", "sports", "music", "gardening", "medicine", "politics", "chemistry", "education"),
    *("fiction", "business", "space", "animals", "languages", "art", "economics", "movies", "psychology"),
    *("engineering", "statistics", "databases", "networks", "algorithms", "web pages", "the household"),
)


def openings(seed: int) -> Iterator[tuple[str, str]]:
    """Endless pairs of a topic and the beginning of a question: all pairs in a random order, then all again.

    Args:
        seed: determines the order.
    """
    pairs = list(itertools.product(TOPICS, STARTS))
    rng = random.Random(seed)
    while True:
        rng.shuffle(pairs)
        yield from pairs
