"""An OpenAI-compatible server over one Llama.

It takes the request types of llama-cpp-python's server and answers in the same form, but the app is our own. Theirs has
one model in a module's globals, checks its responses against a type that drops fields such as ``timings``, does not
notice that the client of an unstreamed answer has left, answers the errors of a stream with a broken 200, and
generates in any thread of a pool, each of which would keep its own OpenMP threads.
"""

from __future__ import annotations

from .app import create_app
from .embeddings import open_embedder
from .serving import bound_socket, serve

__all__ = ["bound_socket", "create_app", "open_embedder", "serve"]
