"""/v1/embeddings: embeddings of texts, by the Llama that answers or by a second one."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Generator
from typing import Any, Literal, cast

import llama_cpp
import numpy as np
from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response
from typing_extensions import Self

from specllama import Llama
from specllama.chat import require_known
from specllama.drop_in import Watch, as_inputs, call_on
from specllama.engine import require_room, require_room_for_ids, size_of

from .document import with_body
from .errors import error_reply
from .fields import with_nulls
from .job import Item, Work
from .log import note_job
from .prompts import Prompt
from .replies import JsonReply, stopped_when_client_leaves
from .request_limits import Bodies
from .wire import without_nulls
from .worker import Worker


class EmbeddingRequest(BaseModel):
    """The body of /v1/embeddings, and of llama-server's /embedding, which names the input `content`."""

    input: Prompt | None = None
    content: Prompt | None = Field(
        None, description="llama-server's name for `input`. The answer has llama-server's form then."
    )
    embd_normalize: Literal[2] = Field(
        2, description="The norm that vectors are divided by. Only 2, the Euclidean norm, is supported."
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    model_config = ConfigDict(json_schema_extra=with_nulls)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        require_known("the request", body, set(cls.model_fields))
        return without_nulls(body) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _of_one_name(self) -> Self:
        if (self.input is None) == (self.content is None):
            raise ValueError(
                'send "input", a text or a list of texts, or "content", which is llama-server\'s name of it'
            )
        return self

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts, or their token ids."""
        given = self.content if self.input is None else self.input
        return as_inputs(cast("str | list[int] | list[str] | list[list[int]]", given))[0]

    def require_room(self, llm: Llama) -> None:
        """Refuses input that cannot be embedded, before it is tokenized.

        Raises:
            ValueError: there is no text, a text is too long, or `dimensions` is not the model's.
        """
        if not self.inputs:
            raise ValueError("input is empty: send a text, or a list of texts")
        for given in self.inputs:
            if isinstance(given, str):
                # A larger context (-c) is no way out: a second model has an n_ctx of its own.
                require_room(size_of(given), llm.n_ctx(), or_else="")
            else:
                require_room_for_ids(len(given), llm.n_ctx(), or_else="")
        if self.dimensions not in (None, llm.n_embd()):
            raise ValueError(
                f"dimensions={self.dimensions}: this model's vectors have {llm.n_embd()} numbers, and are not cut"
            )


def can_embed(llm: Llama) -> bool:
    """Whether a Llama computes one embedding for a text."""
    pools = llama_cpp.llama_pooling_type(llm.ctx) > llama_cpp.LLAMA_POOLING_TYPE_NONE
    return bool(llm.context_params.embeddings) and pools and not _ranks(llm)


def require_embeds(llm: Llama) -> None:
    """Refuses a Llama that does not compute one embedding for a text.

    Raises:
        ValueError: the Llama computes no embedding, a score, or an embedding for each token, or llama.cpp would end the
            process.
    """
    llm.engine.model.require_embedder()
    if _ranks(llm):
        raise ValueError("this model ranks, and makes no embeddings: take one that was made for them")
    if not can_embed(llm):
        raise ValueError(
            "this embedder makes no vector of a text: create the Llama with embedding=True, and if the model's file "
            "has no pooling, with pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN"
        )


def _ranks(llm: Llama) -> bool:
    return bool(llama_cpp.llama_pooling_type(llm.ctx) == llama_cpp.LLAMA_POOLING_TYPE_RANK)


def add_embeddings(app: FastAPI, bodies: Bodies, name: str, embedder: Llama | None, worker: Worker) -> None:
    """Adds the routes.

    Args:
        app: gets the routes.
        bodies: reads the bodies.
        name: the model's name.
        embedder: the Llama that computes the embeddings. None: requests are refused.
        worker: runs the requests.
    """

    @app.post("/embeddings", include_in_schema=False, response_model=None)
    @app.post("/v1/embeddings", response_model=None, openapi_extra=with_body(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        return await answered(request)

    @app.post("/embedding", include_in_schema=False, response_model=None)
    async def llama_servers(request: Request) -> Response:
        return await answered(request, is_theirs=True)

    async def answered(request: Request, is_theirs: bool = False) -> Response:
        try:
            body = await bodies.parsed(request, EmbeddingRequest)
            if embedder is None:
                raise ValueError("this server makes no embeddings: start it with --embedding-model FILE")
            await bodies.run(body.require_room, embedder)
            job = worker.start(_work(embedder, body, body.model or name))
            note_job(request.scope, job)
            async with stopped_when_client_leaves(request.receive, job):
                made = await anext(job)
            return JsonReply(_as_theirs(made) if is_theirs or body.content is not None else made)
        except Exception as error:
            return error_reply(error)


def _work(llm: Llama, body: EmbeddingRequest, name: str) -> Work:
    def work(watch: Watch) -> Generator[Item, None, None]:
        call = call_on(llm, watch=watch)
        with llm.engine.texts.taken(1, watch.poll, stop=watch.stop, is_alone=True):
            vectors, num_tokens = llm.embed(body.inputs, normalize=True, truncate=False, return_count=True, call=call)
        encode: Callable[[list[float]], Any] = _base64 if body.encoding_format == "base64" else list
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)} for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        yield {"object": "list", "data": data, "model": name, "usage": usage}

    return work


def _as_theirs(made: Item) -> Any:
    """The answer in llama-server's form: each text has a list of embeddings, with one entry."""
    return [{"index": each["index"], "embedding": [each["embedding"]]} for each in made["data"]]


def _base64(vector: list[float]) -> str:
    """The form that OpenAI's clients ask for by default: single precision, little-endian."""
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")


def open_embedder(path: str, **options: Any) -> contextlib.closing[Llama]:
    """Opens a Llama that computes embeddings; the context manager closes it.

    A model whose file names no pooling type gets the mean over the tokens.

    Raises:
        ValueError: the file is not a model that can be loaded, or the model ranks.
    """
    llm = Llama(path, embedding=True, **options)
    if can_embed(llm):
        return contextlib.closing(llm)
    with contextlib.closing(llm):
        if _ranks(llm):
            require_embeds(llm)
    return contextlib.closing(Llama(path, embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN, **options))
