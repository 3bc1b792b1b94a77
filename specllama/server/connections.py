"""Closes connections that do not send a whole request in time."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

SECONDS_TO_ASK = 60
"""The time for a whole request, from the beginning of a connection or the first byte of a later request."""


class TimedConnection(H11Protocol):
    """uvicorn's connection with a time limit. uvicorn itself waits forever for the first request, and for its rest."""

    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the time limit."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start()

    def data_received(self, data: bytes) -> None:
        """Stops the time limit once the request is complete."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._stop()
        elif self._clock is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the time limit."""
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        self._clock = self.loop.call_later(SECONDS_TO_ASK, self._give_up)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        self.transport.close()
