"""An OpenAI-compatible server over one Llama.

It takes the request types of llama-cpp-python's server and answers in the same form, but the app is our own, because
the app of llama-cpp-python keeps one model in a module's globals, checks its responses against a type that drops fields
such as ``timings``, does not notice that the client of an unstreamed answer has left, and sends errors of a stream in a
broken 200 response. It also generates in any thread of a pool, and each of these would keep OpenMP threads of its own.
"""

from __future__ import annotations

from .app import create_app
from .embeddings import open_embedder
from .serving import bound_socket, serve

__all__ = ["bound_socket", "create_app", "open_embedder", "serve"]
