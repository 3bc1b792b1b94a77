"""What a caller hears of its texts, and stops them with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from specllama.engine.listener import Listener, Stopped
from specllama.stats import Stats, Tally
from specllama.token import Origin


class Watch(Listener):
    """Of one call, or of several in one thread.

    ``stop`` may be called from any thread; everything else belongs to the thread that generates.

    Args:
        whole: that of a call of which this one is a part: what stops it stops this.
    """

    def __init__(self, whole: Watch | None = None) -> None:
        self._whole = whole
        self._stopped = False
        self._ended = Tally()
        self._running: Callable[[], Tally] | None = None
        self._shown: list[tuple[int, Origin]] = []
        self.finish_reason = "stop"
        """Of the last completion: ``stop`` or ``length``."""
        self.stopped_by: str | None = None
        """The stop string that has ended the last completion."""
        self.num_prompt_tokens = 0
        """Tokens of the prompts, also of those behind which nothing was to be generated."""
        self.is_decoded_outside = False
        """Whether a chat handler decodes the prompts, as those for images do: what is held then was not cached."""
        self.num_shown = 0
        """Tokens of the texts, without those that ended one."""
        self.first_token_at: float | None = None
        """When the first text had its first token, by ``time.monotonic``; known once a text has ended."""
        self._began_at = 0.0

    def stop(self) -> None:
        """Ends the generation under way, and any later one, within a round: it raises Stopped."""
        self._stopped = True

    def heed(self) -> None:
        """Called between rounds.

        Raises:
            Stopped: ``stop`` was called.
        """
        if self._whole is not None:
            self._whole.heed()
        if self._stopped:
            raise Stopped("the generation was stopped")

    def begin(self, tally: Callable[[], Tally]) -> None:
        """A generation has begun; `tally` gives its numbers so far."""
        self._running = tally
        self._began_at = time.monotonic()

    def end(self, tally: Tally) -> None:
        """The generation has ended with these numbers."""
        if self._running is not None and tally.num_tokens:
            self._had_first_token(self._began_at + tally.stats().prompt_seconds)
        self._running = None
        self._ended = self._ended + tally

    def _had_first_token(self, at: float) -> None:
        self.first_token_at = at if self.first_token_at is None else min(at, self.first_token_at)
        if self._whole is not None:
            self._whole._had_first_token(at)

    def stats(self) -> Stats:
        """Statistics of all generations together, the one under way included."""
        return self.tally().stats()

    def tally(self) -> Tally:
        """The sums that they are made of."""
        running = self._running  # which another thread takes away when the text ends
        return self._ended if running is None else self._ended + running()

    def show(self, tokens: Iterable[tuple[int, Origin]]) -> None:
        """These tokens (id, origin) make the piece of text that is handed out next."""
        before = len(self._shown)
        self._shown.extend(tokens)
        self.num_shown += len(self._shown) - before

    def take_shown(self) -> list[tuple[int, Origin]]:
        """The tokens shown since the last call."""
        shown, self._shown = self._shown, []
        return shown
