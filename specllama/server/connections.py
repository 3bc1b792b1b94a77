"""Closes connections that do not send a whole request in time, or do not read their answer."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

SECONDS_TO_ASK = 60
"""Seconds for sending a whole request, from the beginning of a connection or the first byte of a later request."""
SECONDS_TO_READ = 60
"""Seconds in which a client must read some of the waiting bytes. A stream that nobody reads would keep its memory."""


class TimedConnection(H11Protocol):
    """uvicorn's connection with time limits. uvicorn itself waits forever for a first request, or the rest of one."""

    _clock: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _unread = 0  # bytes that waited for the client when the limit of reading began

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
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the time limit of a client that does not read."""
        super().pause_writing()
        self._look_at_reader()

    def resume_writing(self) -> None:
        """Stops the time limit of a client that does not read."""
        self._stop_reading()
        super().resume_writing()

    def _start(self) -> None:
        self._clock = self.loop.call_later(SECONDS_TO_ASK, self._give_up)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _look_at_reader(self) -> None:
        unread: int = self.transport.get_write_buffer_size()
        if self._reading is not None and unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._reading = self.loop.call_later(SECONDS_TO_READ, self._look_at_reader)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _give_up(self) -> None:
        self.transport.close()
