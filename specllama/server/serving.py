"""Runs the app until a signal ends it."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from specllama.backend.streams import is_terminal

from .connections import TimedConnection
from .worker import OUTCOMES, Worker

_GRACE_SECONDS = 10  # seconds at the shutdown for clients to read the last part of their answers
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MOST_KEPT = 1 << 20  # bytes: glibc returns larger free blocks to the system


def bound_socket(host: str, port: int) -> socket.socket:
    """Binds a socket for the server. It refuses connections until the server listens on it.

    Args:
        host: a name or an address of this machine.
        port: 0 chooses a free port.

    Raises:
        OSError: the address does not exist or is in use.
    """
    try:
        if not 0 <= port <= 65535:  # getaddrinfo would take the port modulo 65536
            raise OSError("there is no such port")
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_failure:
            bound = on_failure.enter_context(socket.socket(family, kind, protocol))
            if sys.platform != "win32":  # on Windows SO_REUSEADDR would let two servers share the port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            on_failure.pop_all()
    except OSError as error:
        raise OSError(f"cannot serve on {host} port {port}: {error}; choose others with --host and --port") from error
    return bound


def serve(
    app: FastAPI,
    bound: socket.socket,
    say: Callable[[str], object] = lambda text: None,
    begun: Callable[[], object] = lambda: None,
) -> None:
    """Serves until SIGTERM or Ctrl-C. Running answers are then stopped within a round, and end with an error.

    Args:
        app: from ``create_app``.
        bound: from ``bound_socket``; the caller closes it.
        say: called with messages about the shutdown.
        begun: called when the server listens.

    Raises:
        KeyboardInterrupt: the server was ended by Ctrl-C.
    """
    server = _Server(configured(app), {app.state.worker, app.state.embedding_worker}, say, begun)
    with _heard_by(server.handle_exit):
        server.run(sockets=[bound])
    if server.interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _heard_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A block in which signals go to a handler.

    uvicorn sets the same handler, but later. Until then asyncio would handle Ctrl-C: it would cancel the task that runs
    the server, with a traceback.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def configured(app: FastAPI) -> uvicorn.Config:
    """The configuration of uvicorn for an app."""
    return uvicorn.Config(
        app,
        http=TimedConnection,
        ws="none",
        log_level="warning",
        access_log=False,
        use_colors=is_terminal(sys.stderr),  # uvicorn would check stdout, which may be None
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )


def give_back_freed_memory() -> None:
    """Makes glibc return freed memory to the system, for the whole process. Does nothing on other systems.

    By default glibc raises its thresholds to the largest block that was freed. After a body of 8 MB, each thread's heap
    may keep up to 16 MB for good, and a server has many threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MOST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)


class _Server(uvicorn.Server):
    """Ends the generations when the server is told to end: uvicorn would wait for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        workers: Collection[Worker],
        say: Callable[[str], object],
        begun: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._workers, self._say, self._begun = workers, say, begun
        self.interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes that a signal ends the server. uvicorn would raise it again at the end; SIGTERM is no error here."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server, and calls `begun` once it listens."""
        await super().startup(sockets)
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the generations, then the server."""
        running = sum(worker.num_running for worker in self._workers)
        waiting = sum(worker.num_waiting for worker in self._workers)
        self._say(f"ending: {running} answers under way are stopped, {waiting} waiting requests get 503")
        for worker in self._workers:
            worker.shut_down()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would cancel the app's lifespan, and log that as an error
            await self.lifespan.shutdown()
        counts = {name: sum(worker.outcomes[name] for worker in self._workers) for name in OUTCOMES}
        self._say(f"ended; requests: {', '.join(f'{count} {name}' for name, count in counts.items())}")
