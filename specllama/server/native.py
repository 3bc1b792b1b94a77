"""llama-server's own routes for completions: /completion, and /infill, by which editors fill gaps in a text."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field, PrivateAttr, model_validator
from starlette.responses import Response

from specllama import Llama
from specllama.drop_in import bytes_named, infill_tokens, prompt_tokens_of
from specllama.engine import require_room, size_of

from .completions import CompletionRequest
from .document import with_body
from .errors import error_body
from .fields import KnownFields
from .generating import Generating
from .job import Item
from .llama_fields import ORDER, samplers_named
from .llama_server import generation_settings
from .other_form import OtherForm, with_fields_of
from .prompts import PromptOfCompletion, ids_of
from .request_limits import checked
from .wire import without_nulls

_OF_COMPLETIONS = ("best_of", "echo", "logprobs", "suffix", "stream_options")


class Extra(KnownFields):
    """Another text for the model to read, such as a file."""

    called: ClassVar[str] = "an entry of input_extra"

    text: str
    filename: str | None = None
    time: Any = Field(None, description="Has no effect. Editors send it.")


class _Native(OtherForm):
    """The common part of both bodies. Unlisted fields of completions, such as those of samplers, are passed on."""

    max_tokens: int | None = Field(
        None, ge=-1, description="The most tokens of the answer. Default, and -1: as many as fit."
    )
    stream: bool = False
    response_fields: list[str] = Field([], description="The answer has only these fields, such as timings/prompt_n.")
    return_tokens: bool = Field(False, description="Has no effect: the answer always has its tokens.")
    n_probs: int | None = Field(
        None, ge=0, description="The number of alternatives that are given for each token. 0: none."
    )

    _llm: Llama | None = PrivateAttr(None)

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

    def completion(self, llm: Llama, prompt: Any) -> CompletionRequest:
        """The equivalent completion request, with this prompt."""
        self._llm = llm
        body = {
            **self.others(),
            "prompt": prompt,
            "max_tokens": -1 if self.max_tokens is None else self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_origins": True,
            "n_probs": self.n_probs,
        }
        return checked(body, CompletionRequest)

    def translator(self, asked: CompletionRequest) -> _Translator:
        """Returns the translator of the answer: see ``Translated``."""
        assert self._llm is not None
        return _Translator(self, asked, self._llm)

    def progress_chunk(self) -> Item:
        """A chunk without text, to which the progress of the prompt is added."""
        return _part(0, "", [])


class NativeRequest(_Native):
    """The body of /completion. Unlisted fields of completions are passed on unchanged."""

    prompt: PromptOfCompletion

    model_config = ConfigDict(json_schema_extra=with_fields_of(CompletionRequest, _OF_COMPLETIONS))

    def asked(self, llm: Llama) -> CompletionRequest:
        """The equivalent completion request: see ``Translated``."""
        return self.completion(llm, self.prompt)


class InfillRequest(_Native):
    """The body of /infill. Unlisted fields of completions, such as those of samplers, are passed on unchanged."""

    input_prefix: str
    input_suffix: str
    input_extra: list[Extra] = Field(
        [], description="Other files, the most relevant one last. Files that do not fit are left out."
    )
    model_config = ConfigDict(json_schema_extra=with_fields_of(CompletionRequest, _OF_COMPLETIONS))

    prompt: str = Field("", description="The beginning of the text that is filled in.")

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"n_indent", "samplers", "t_max_predict_ms", "t_max_prompt_ms"}
    )  # fields by which editors limit the answer

    def asked(self, llm: Llama) -> CompletionRequest:
        """The equivalent completion request: see ``Translated``."""
        texts = [self.input_prefix, self.input_suffix, self.prompt]
        extra = [(each.filename, each.text) for each in self.input_extra]
        for text in (texts, *map(list, extra)):
            require_room(size_of(text), llm.n_ctx())
        most = llm.n_ctx() - max(1, self.max_tokens or 0)
        prompt = infill_tokens(llm, self.input_prefix + self.prompt, self.input_suffix, extra=extra, most=most)
        return self.completion(llm, prompt)


def add_native(app: FastAPI, generating: Generating) -> None:
    """Adds the routes.

    Args:
        app: gets the routes.
        generating: answers their requests.
    """

    @app.post("/completion", response_model=None, openapi_extra=with_body(NativeRequest))
    async def completion(request: Request) -> Response:
        return await generating.translated(request, NativeRequest, lambda error, _: error_body(error))

    @app.post("/infill", response_model=None, openapi_extra=with_body(InfillRequest))
    async def infill(request: Request) -> Response:
        return await generating.translated(request, InfillRequest, lambda error, _: error_body(error))


def _part(index: int, text: str, tokens: list[int]) -> Item:
    return {"index": index, "content": text, "tokens": tokens, "id_slot": -1, "stop": False}


class _Text:
    """One text of the answer, as far as its chunks have arrived."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.probabilities: list[Item] = []
        self.last: Item = {}


class _Translator:
    """Translates an answer into the form of llama-server's completions."""

    def __init__(self, request: _Native, asked: CompletionRequest, llm: Llama) -> None:
        self._request = request
        self._asked = asked
        self._llm = llm

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """Yields one response, a list of responses if several texts were asked for, or the chunks of a stream."""
        prompts = [text.prompt for text in self._asked.texts()]
        texts = [_Text() for _ in prompts]
        for chunk in chunks:
            for choice in chunk["choices"]:  # the chunk with the usage has no choices
                index = choice["index"]
                text = texts[index]
                new = [token["id"] for token in chunk.get("tokens", ())]
                found = self._probabilities(choice["logprobs"], new)
                text.tokens += new
                text.parts.append(choice["text"])
                text.probabilities += found
                text.last.update(chunk)
                more = {"completion_probabilities": found} if found else {}
                if self._request.stream and (choice["text"] or new):
                    yield {**_part(index, choice["text"], new), **more}
                if self._request.stream and choice["finish_reason"] is not None:
                    yield self._done(index, prompts[index], text)
        if not self._request.stream:
            whole = [
                self._done(index, prompt, text) for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
            ]
            yield whole if len(whole) > 1 else whole[0]  # type: ignore[misc]

    def _done(self, index: int, prompt: Any, text: _Text) -> Item:
        streams, last = self._request.stream, text.last
        word, timings, whole_text = last.get("stopping_word", ""), last["timings"], "".join(text.parts)
        cut_off = last["choices"][0]["finish_reason"] == "length"
        # If no token is generated, the prompt is not decoded either: the timings are 0, and the prompt is counted here.
        num_prompt = timings["cache_n"] + timings["prompt_n"] or self._size_of(prompt)
        whole: Item = {
            **_part(index, "" if streams else whole_text, [] if streams else text.tokens),
            "stop": True,
            "model": last["model"],
            "tokens_predicted": len(text.tokens),
            "tokens_evaluated": num_prompt,
            "generation_settings": generation_settings(self._asked.model_dump(), self._samplers()),
            "prompt": prompt if isinstance(prompt, str) else self._text_of(prompt),
            "has_new_line": "\n" in whole_text,
            "truncated": False,
            "stop_type": "limit" if cut_off else "word" if word else "eos",
            "stopping_word": word,
            "tokens_cached": num_prompt + len(text.tokens),
            "timings": timings,
            **self._request.warned(last),
        }
        if text.probabilities and not streams:
            whole["completion_probabilities"] = text.probabilities
        paths = self._request.response_fields
        return {path: found for path in paths if (found := _at(whole, path)) is not None} if paths else whole

    def _samplers(self) -> list[str]:
        return samplers_named(self._request.others().get("samplers", [*ORDER]))

    def _size_of(self, prompt: Any) -> int:
        return len(prompt_tokens_of(self._llm, ids_of(self._llm, prompt), None))

    def _text_of(self, prompt: list[int | str]) -> str:
        ids = ids_of(self._llm, prompt)
        assert not isinstance(ids, str)
        return self._llm.engine.text(ids, special=True).decode("utf-8", "replace")

    def _probabilities(self, logprobs: Any, tokens: list[int]) -> list[Item]:
        """Converts the tokens' log-probabilities from OpenAI's form."""
        if logprobs is None:
            return []
        found = []
        for token, name, score, top in zip(
            tokens, logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            ranked = sorted(top.items(), key=lambda each: each[1], reverse=True)[: self._request.n_probs]
            others = [self._entry(token if other == name else None, other, value) for other, value in ranked]
            found.append({**self._entry(token, name, score), "top_logprobs": others})
        return found

    def _entry(self, token: int | None, name: str, logprob: float) -> Item:
        """The entry of a token. It has the token's id if the id is given, or if one token has this name."""
        data = bytes_named(name)
        if token is None:
            ids = self._llm.tokenize(data, add_bos=False, special=True) if data else []
            token = ids[0] if len(ids) == 1 and self._llm.engine.text(ids, special=True) == data else None
        number = {} if token is None else {"id": token}
        return {**number, "token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": logprob}


def _at(value: Any, path: str) -> Any:
    """The value at a path such as timings/prompt_n; None if the path leads to no value."""
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
