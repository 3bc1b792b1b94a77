"""llama-server's routes besides those of OpenAI: tokens, chat templates, and properties of the model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import llama_cpp
from fastapi import FastAPI, Request
from pydantic import BaseModel, PlainValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from specllama import Llama, __version__
from specllama.chat import ChatPrompt
from specllama.drop_in import reads_images
from specllama.engine import CHAIN, DEFAULTS, measured_gain

from .chats import ChatRequest
from .document import with_body
from .errors import error_reply
from .fields import KnownFields
from .llama_fields import ORDER
from .prompts import DetokenizeRequest, OnePrompt, require_room_for_prompt
from .replies import JsonReply
from .request_limits import Bodies
from .worker import Worker

_TEMPLATE = "tokenizer.chat_template"


def _content(given: Any) -> OnePrompt:
    """A text, or a list of texts and token ids."""
    parts = given if isinstance(given, list) else [given]
    if not {type(part) for part in parts} <= ({str, int} if isinstance(given, list) else {str}):
        raise ValueError("it must be a text, or a list of texts and token ids")
    kept: OnePrompt = given
    return kept


class TokenizeRequest(KnownFields):
    """The body of /tokenize."""

    model: str | None = None
    content: Annotated[OnePrompt, PlainValidator(_content, json_schema_input_type=OnePrompt)] = ""
    add_special: bool | None = False
    parse_special: bool | None = True
    with_pieces: bool | None = False


BODIES = (TokenizeRequest,)


def add_llama_servers(app: FastAPI, llm: Llama, bodies: Bodies, *, name: str, worker: Worker) -> None:
    """Adds the routes.

    Args:
        app: gets the routes.
        llm: the model.
        bodies: reads the bodies.
        name: the model's name.
        worker: runs the requests.
    """

    @app.post("/tokenize", openapi_extra=with_body(TokenizeRequest))
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await bodies.parsed(request, TokenizeRequest)
        require_room_for_prompt(body.content, llm.n_ctx())
        parts = body.content if isinstance(body.content, list) else [body.content]
        return await bodies.run(_tokenized, llm, body, parts)

    @app.post("/detokenize", openapi_extra=with_body(DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, str]:
        tokens = (await bodies.parsed(request, DetokenizeRequest)).tokens
        text = await bodies.run(functools.partial(llm.engine.text, special=True), tokens)
        return {"content": text.decode("utf-8", errors="replace")}

    @app.post("/apply-template", response_model=None, openapi_extra=with_body(ChatRequest))
    async def apply_template(request: Request) -> Response:
        return await prompt_reply(request, bodies, llm, ChatRequest, lambda prompt: {"prompt": _text_of(llm, prompt)})

    @app.post("/chat/completions/input_tokens", include_in_schema=False, response_model=None)
    @app.post("/v1/chat/completions/input_tokens", response_model=None, openapi_extra=with_body(ChatRequest))
    async def count(request: Request) -> Response:
        return await prompt_reply(request, bodies, llm, ChatRequest, counted)

    @app.get("/props")
    async def props() -> dict[str, Any]:
        return _props(llm, name, worker.max_running)

    @app.get("/slots", response_model=None)
    async def slots(fail_on_no_slot: str | None = None) -> Response:
        if fail_on_no_slot and worker.num_running == worker.max_running:
            return error_reply(HTTPException(503, f"all {worker.max_running} slots are busy: try again"))
        return JsonReply([_slot(llm, number, worker) for number in range(worker.max_running)])


async def prompt_reply(
    request: Request,
    bodies: Bodies,
    llm: Llama,
    model: type[BaseModel],
    answer: Callable[[ChatPrompt], dict[str, Any]],
    reply_to: Callable[[Exception], Response] = error_reply,
) -> Response:
    """Replies with the result of `answer` for a chat's prompt.

    Args:
        request: the HTTP request.
        bodies: reads the request's body.
        llm: the model.
        model: the type of the body, with a method ``prompt``.
        answer: makes the reply's body from the prompt.
        reply_to: makes the response to an error.
    """
    try:
        body: Any = await bodies.parsed(request, model)
        return JsonReply(answer(await bodies.run(body.prompt, llm)))
    except Exception as error:  # a chat handler may raise anything
        return reply_to(error)


def _text_of(llm: Llama, prompt: ChatPrompt) -> str:
    if prompt.text is None:
        return llm.engine.text(prompt.tokens, special=True).decode("utf-8", "replace")
    return prompt.text


def _slot(llm: Llama, number: int, worker: Worker) -> dict[str, Any]:
    """The state of a slot. As many slots are shown as processing as requests run, but not necessarily the same ones."""
    drafts = llm.draft_model is not None and llm.num_draft_tokens != 0
    is_processing = number < worker.num_running
    return {"id": number, "n_ctx": llm.n_ctx(), "speculative": drafts, "is_processing": is_processing}


def _tokenized(llm: Llama, body: TokenizeRequest, parts: list[Any]) -> dict[str, Any]:
    tokens: list[int] = []
    is_first, parses = body.add_special or False, body.parse_special is not False
    for part in parts:
        if isinstance(part, str):
            tokens += llm.tokenize(part.encode("utf-8", errors="replace"), add_bos=is_first, special=parses)
        else:
            tokens.append(part)
        is_first = False
    tokens = llm.known_tokens(tokens)
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(llm.engine.text([token], special=True))} for token in tokens]}


def _piece(whole: bytes) -> str | list[int]:
    """The text of a token; its bytes if it is only a part of a character."""
    try:
        return whole.decode("utf-8")
    except UnicodeDecodeError:
        return list(whole)


def meta_of(llm: Llama) -> dict[str, Any]:
    """The model's properties in /v1/models."""
    known = llm.engine.models["target"].describe()
    return {
        "n_vocab": llm.n_vocab(),
        "n_ctx": llm.n_ctx(),
        "n_ctx_train": llama_cpp.llama_model_n_ctx_train(llm.model),
        "n_embd": llm.n_embd(),
        "n_params": known["parameters"],
        "size": known["size"],
    }


def counted(prompt: ChatPrompt) -> dict[str, Any]:
    """The number of a prompt's tokens, in OpenAI's form."""
    return {"object": "response.input_tokens", "input_tokens": len(prompt.tokens)}


def generation_settings(given: Mapping[str, Any], samplers: Sequence[str] = ORDER) -> dict[str, Any]:
    """All settings of a generation, with llama-server's names.

    Args:
        given: the fields of a completion. Fields that are missing or None get their defaults.
        samplers: the names of the samplers that are applied.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    numbers = {**CHAIN, **DEFAULTS, "repeat_last_n": CHAIN["penalty_last_n"], "mirostat_tau": 5.0, "mirostat_eta": 0.1}
    del numbers["penalty_last_n"]
    settings = {name: asked.get(name, default) for name, default in numbers.items()}
    most, stop = asked.get("max_tokens", -1), asked.get("stop", [])
    flags = ("ignore_eos", "stream", "timings_per_token")
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        **{name: asked.get(name, False) for name in flags},
        "mirostat": asked.get("mirostat_mode", 0),
        "n_predict": most,
        "max_tokens": most,
        "seed": asked.get("seed", -1),
        "stop": [stop] if isinstance(stop, str) else stop,
        "n_probs": asked.get("logprobs", 0),
        "grammar": asked.get("grammar", ""),
        "logit_bias": [
            {"token": token, "bias": False if bias == -math.inf else bias}  # JSON has no infinity
            for token, bias in asked.get("logit_bias", {}).items()
        ],
        "samplers": list(samplers),
        **dict.fromkeys(("min_keep", "n_keep", "n_discard"), 0),
    }


def _props(llm: Llama, name: str, num_slots: int) -> dict[str, Any]:
    def text_of(token: int) -> str:
        return llm.engine.text([token], special=True).decode("utf-8", "replace") if token >= 0 else ""

    return {
        "default_generation_settings": {"n_ctx": llm.n_ctx(), "params": generation_settings({})},
        "total_slots": num_slots,
        "model_alias": name,
        "model_path": name,  # the path of the file is not shown to clients
        "modalities": {"vision": reads_images(llm), "audio": False, "video": False},
        "chat_template": llm.metadata.get(_TEMPLATE, ""),
        "bos_token": text_of(llm.token_bos()),
        "eos_token": text_of(llm.token_eos()),
        "build_info": f"specllama {__version__}",
        "is_sleeping": False,
        "learning": None if llm.learn_dir is None else {"draft": _learned(llm)},
    }


def _learned(llm: Llama) -> dict[str, Any] | None:
    """What a draft has learned from the answers, and what it gains; None if there is none yet."""
    draft = llm.learned
    if draft is None:
        return None
    gain = measured_gain(llm.model_path, str(draft.path))
    return {**draft.shown(), "gain": None if gain is None else gain[0]}
