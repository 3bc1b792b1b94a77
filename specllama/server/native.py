"""llama-server's own paths of completions: /completion, and /infill, by which editors fill gaps."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, ClassVar, cast

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field, PlainValidator, model_validator
from starlette.responses import Response

from specllama import Llama
from specllama.drop_in.prompt_tokens import infill_tokens
from specllama.engine.limits import require_room, size_of

from .document import with_body
from .errors import error_body
from .generating import Generating
from .job import Item
from .other_form import OtherForm
from .request_limits import checked
from .requests import CompletionRequest, checked_prompt
from .wire import without_nulls

_OF_COMPLETIONS = ("best_of", "echo", "logprobs", "n", "n_cmpl", "suffix", "stream_options")


def _one_prompt(given: Any) -> str | list[int]:
    prompt = checked_prompt(given)
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        raise ValueError("it must be one text, or its token ids: for several there is /v1/completions")
    return cast("str | list[int]", prompt)


class Extra(BaseModel):
    """Another text that the model is to know."""

    text: str
    filename: str | None = None


class _Native(OtherForm):
    """A body. Fields of completions that are not here, such as those of samplers, go on as they are."""

    max_tokens: int | None = Field(None, ge=-1, description="Default, and -1: as many as fit.")
    stream: bool = False
    response_fields: list[str] = Field([], description="Of the answer only these, such as timings/prompt_n.")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        plain = without_nulls(body)
        if "n_predict" in plain:
            plain["max_tokens"] = plain.pop("n_predict")
        for name in plain.keys() & {*_OF_COMPLETIONS}:
            raise ValueError(f'"{name}" is for /v1/completions: ask there, or leave it out')
        return plain

    def completion(self, prompt: str | list[int]) -> CompletionRequest:
        """The completion that it means, of this prompt."""
        body = {
            **self.others(),
            "prompt": prompt,
            "max_tokens": -1 if self.max_tokens is None else self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_origins": True,
        }
        return checked(body, CompletionRequest)

    def teller(self, asked: CompletionRequest) -> _Told:
        """See ``Translated``."""
        return _Told(self, asked)


class NativeRequest(_Native):
    """The body of /completion. Fields of completions that are not here go on as they are."""

    prompt: Annotated[str | list[int], PlainValidator(_one_prompt, json_schema_input_type=str | list[int])]

    def asked(self, llm: Llama) -> CompletionRequest:
        """See ``Translated``."""
        return self.completion(self.prompt)


class InfillRequest(_Native):
    """The body of /infill. Fields of completions that are not here, such as those of samplers, go on as they are."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] = Field(
        [], description="Other files, the nearest one last. What does not fit is left out."
    )
    prompt: str = Field("", description="How what is to be filled in begins.")

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"n_indent", "samplers", "t_max_predict_ms", "t_max_prompt_ms"}
    )  # editors ask for less, sooner

    def asked(self, llm: Llama) -> CompletionRequest:
        """See ``Translated``."""
        texts = [self.input_prefix, self.input_suffix, self.prompt]
        extra = [(each.filename, each.text) for each in self.input_extra]
        for text in (texts, *([text] for _, text in extra)):
            require_room(size_of(text), llm.n_ctx())
        most = llm.n_ctx() - max(1, self.max_tokens or 0)
        prompt = infill_tokens(llm, self.input_prefix + self.prompt, self.input_suffix, extra=extra, most=most)
        return self.completion(prompt)


def add_native(app: FastAPI, generating: Generating) -> None:
    """Add the paths.

    Args:
        app: gets them.
        generating: answers their requests.
    """

    @app.post("/completion", response_model=None, openapi_extra=with_body(NativeRequest))
    async def completion(request: Request) -> Response:
        return await generating.told(request, NativeRequest, lambda error, _: error_body(error))

    @app.post("/infill", response_model=None, openapi_extra=with_body(InfillRequest))
    async def infill(request: Request) -> Response:
        return await generating.told(request, InfillRequest, lambda error, _: error_body(error))


class _Told:
    """Tells an answer in the form of llama-server's own completions."""

    def __init__(self, request: _Native, asked: CompletionRequest) -> None:
        self._request = request
        self._asked = asked

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """One response, or the chunks of a stream."""
        texts: list[str] = []
        tokens: list[int] = []
        last: Item = {}
        for chunk in chunks:
            new = [token["id"] for token in chunk.get("tokens", ())]
            tokens += new
            last.update(chunk, choices=chunk["choices"] or last["choices"])  # none in the one with the usage
            text = "".join(choice["text"] for choice in chunk["choices"])
            texts.append(text)
            if self._request.stream and (text or new):
                yield {"index": 0, "content": text, "tokens": new, "id_slot": -1, "stop": False}
        if self._request.stream:
            yield self._done(last, "", [])
        else:
            yield self._done(last, "".join(texts), tokens)

    def _done(self, last: Item, text: str, tokens: list[int]) -> Item:
        word, usage = last.get("stopping_word", ""), last["usage"]
        cut_off = last["choices"][0]["finish_reason"] == "length"
        whole: Item = {
            "index": 0,
            "content": text,
            "tokens": tokens,
            "id_slot": -1,
            "stop": True,
            "model": last["model"],
            "tokens_predicted": usage["completion_tokens"],
            "tokens_evaluated": usage["prompt_tokens"],
            "truncated": False,
            "stop_type": "limit" if cut_off else "word" if word else "eos",
            "stopping_word": word,
            "tokens_cached": usage["total_tokens"],
            "timings": last["timings"],
            **self._request.warned(last),
        }
        paths = self._request.response_fields
        return {path: found for path in paths if (found := _at(whole, path)) is not None} if paths else whole


def _at(value: Any, path: str) -> Any:
    """What stands at such a place; None if nothing does."""
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
