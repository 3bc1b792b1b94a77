"""Lets the caller of a generating method follow the texts under way, and stop them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from specllama.engine.listener import Listener, Stopped
from specllama.stats import Stats, Tally
from specllama.token import Origin


class Watch(Listener):
    """Follows one call, or several calls in one thread.

    Any thread may call `stop`. The other methods belong to the thread that generates.

    Args:
        whole: the watch of a larger call, of which this watch follows a part. Stopping `whole` stops the part, too.
    """

    def __init__(self, whole: Watch | None = None) -> None:
        self._whole = whole
        self._stopped = False
        self._ended = Tally()
        self._running: Callable[[], Tally] | None = None
        self._shown: list[tuple[int, Origin]] = []
        self.stopped_by: str | None = None
        """The stop string that ended the last completion; None for any other end."""
        self.num_prompt_tokens = 0
        """The number of tokens in all prompts, also in prompts that were decoded without generating."""
        self.is_decoded_outside = False
        """Whether a chat handler decodes the prompts by itself, as handlers for images do."""
        self.num_held = 0
        """Of such prompts, the number of tokens that a handler found decoded."""
        self.num_shown = 0
        """The number of tokens in all texts, without tokens that ended a text."""
        self.num_looked_up = 0
        """The number of looked-up tokens in all texts."""
        self.first_token_at: float | None = None
        """The time of the first token of any text, by ``time.monotonic``. It is known once a text has ended."""
        self._began_at = 0.0

    def stop(self) -> None:
        """Stop the generation under way, and any later one, within a round. Generating then raises Stopped."""
        self._stopped = True

    def poll(self) -> None:
        """Called between rounds.

        Raises:
            Stopped: `stop` was called.
        """
        if self._whole is not None:
            self._whole.poll()
        if self._stopped:
            raise Stopped("the generation was stopped")

    def begin(self, tally: Callable[[], Tally]) -> None:
        """A generation has begun. `tally` returns its numbers so far."""
        self._running = tally
        self._began_at = time.monotonic()

    def end(self, tally: Tally) -> None:
        """A generation has ended. `tally` has its numbers."""
        if self._running is not None and tally.num_tokens:
            self._had_first_token(self._began_at + tally.stats().prompt_seconds)
        self._running = None
        self._ended = self._ended + tally

    def _had_first_token(self, at: float) -> None:
        self.first_token_at = at if self.first_token_at is None else min(at, self.first_token_at)
        if self._whole is not None:
            self._whole._had_first_token(at)

    def stats(self) -> Stats:
        """The statistics of all generations together, with the one under way."""
        return self.tally().stats()

    def tally(self) -> Tally:
        """The counts of all generations together, with the one under way."""
        running = self._running  # a copy: another thread sets it to None when the text ends
        return self._ended if running is None else self._ended + running()

    def show(self, tokens: Iterable[tuple[int, Origin]]) -> None:
        """Note the tokens (id, origin) of the piece of text that is handed out next."""
        new = list(tokens)
        self._shown += new
        self.num_shown += len(new)
        self.num_looked_up += sum(origin == "lookup" for _, origin in new)

    def take_shown(self) -> list[tuple[int, Origin]]:
        """The tokens (id, origin) noted since the last call."""
        shown, self._shown = self._shown, []
        return shown
