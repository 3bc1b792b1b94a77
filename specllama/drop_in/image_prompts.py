"""Prompts with images that llama_cpp's chat handlers read. What the memory, or a copy, has of one is not decoded again.

Such a handler empties the memory, and then decodes one part of the prompt after the other. The view that it is given
collects the parts instead. When the handler asks for the prompt's tokens, the parts that the memory lacks are decoded.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specllama.engine.position import numbers_of_embeddings, numbers_of_image
from specllama.models.weights_digest import digest_of_file

from .view import Call, EngineLlama, View


class _Part(NamedTuple):
    """A part of a prompt."""

    ids: npt.NDArray[np.intc]
    """Tokens, or the numbers of an image's places."""
    decode: Callable[[int], int] | None = None
    """Decodes the image from a place on, and returns the place behind it. None for tokens."""


class ImageView(View):
    """A view for llama_cpp's chat handlers for images: see the module."""

    __slots__ = ("_parts",)
    _parts: list[_Part] | None

    def __init__(self, llama: EngineLlama, call: Call) -> None:
        super().__init__(llama, call)
        object.__setattr__(self, "_parts", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "n_tokens" or self._parts is None:  # else the handler sets what it was told
            super().__setattr__(name, value)

    def reset(self) -> None:
        """Begin a prompt."""
        object.__setattr__(self, "_parts", [])

    def eval(self, tokens: Sequence[int]) -> None:
        """Add tokens to the prompt, or decode them if none is begun."""
        if self._parts is None:
            self.__getattr__("eval")(tokens)
        else:
            self._parts.append(_Part(np.array(tokens, dtype=np.intc)))

    def add_image(self, part: _Part) -> None:
        """Add an image to the prompt."""
        assert self._parts is not None
        self._parts.append(part)

    @property
    def n_tokens(self) -> int:
        """How many places the prompt has, or how many are evaluated if none is begun."""
        if self._parts is None:
            return int(self.__getattr__("n_tokens"))
        return sum(len(part.ids) for part in self._parts)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """The prompt, which is decoded by then."""
        self.decode()
        ids: npt.NDArray[np.intc] = self.__getattr__("input_ids")
        return ids

    @property
    def _ctx(self) -> Any:
        """llama_cpp's context. While a prompt is begun, it collects images."""
        context = self.__getattr__("_ctx")
        return context if self._parts is None else _Collecting(self, context)

    def create_completion(self, *args: Any, **kwargs: Any) -> Any:
        """See ``Llama``. The prompt is decoded first."""
        self.decode()
        return self.__getattr__("create_completion")(*args, **kwargs)

    def decode(self) -> None:
        """Decode what the memory lacks of the prompt."""
        parts: list[_Part] = self._parts or []
        object.__setattr__(self, "_parts", None)
        if not parts:
            return
        ends = np.cumsum([len(part.ids) for part in parts]).tolist()
        bounds = list(zip([0, *ends], ends, parts))  # noqa: B905  # there is one more beginning
        images = [(start, end) for start, end, part in bounds if part.decode is not None]
        held = self._call.slot.hold(np.concatenate([part.ids for part in parts]), images)
        if self._call.watch is not None:
            self._call.watch.num_held += held
        for start, end, part in bounds:
            if end > held and part.decode is None:
                self.eval(part.ids[max(0, held - start) :].tolist())
            elif end > held and part.decode is not None:
                self.position.skip(part.decode(start), part.ids)


class _Collecting:
    """Takes the place of llama_cpp's context for a handler whose view collects a prompt.

    Attributes:
        ctx: what the handler passes to llama.cpp's library for images.
    """

    def __init__(self, view: ImageView, context: Any) -> None:
        self._context = context
        self.ctx = _Destination(view, context.ctx)

    def kv_cache_clear(self) -> None:
        """Do nothing: the memory may be of use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Destination(NamedTuple):
    """Where an image is to be decoded."""

    view: ImageView
    context: Any


class _Library:
    """llama_cpp's bindings of the library for images, for a handler that may be given an `ImageView`.

    Args:
        library: the bindings.
        path: the file with the part of the model that reads images.
    """

    def __init__(self, library: Any, path: str) -> None:
        self._library = library
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def mtmd_helper_bitmap_init_from_buf(self, context: Any, data: Any, *more: Any) -> Any:
        """See llama.cpp. The image is named after its content."""
        bitmap = self._library.mtmd_helper_bitmap_init_from_buf(context, data, *more)
        if bitmap is not None:
            self._library.mtmd_bitmap_set_id(bitmap, hashlib.sha256(bytes(data)).hexdigest().encode())
        return bitmap

    def mtmd_helper_eval_chunk_single(self, context: Any, to: Any, chunk: Any, place: Any, *more: Any) -> int:
        """See llama.cpp. For an `ImageView`, the image is only added to the prompt."""
        if not isinstance(to, _Destination):
            return int(self._library.mtmd_helper_eval_chunk_single(context, to, chunk, place, *more))
        *others, new_place = more
        count = int(self._library.mtmd_input_chunk_get_n_pos(chunk))
        numbers = self._numbers(to.view, chunk, count)

        def decode(start: int) -> int:
            library, position = self._library, type(place)
            if library.mtmd_helper_eval_chunk_single(context, to.context, chunk, position(start), *others, new_place):
                raise ValueError("the image cannot be decoded: take a smaller one, or a larger n_ctx")
            return int(new_place._obj.value)

        to.view.add_image(_Part(numbers, decode))
        new_place._obj.value = place.value + count
        return 0

    def _numbers(self, view: ImageView, chunk: Any, count: int) -> npt.NDArray[np.intc]:
        name = self._library.mtmd_input_chunk_get_id(chunk)
        if not name:
            return numbers_of_embeddings(count)
        # An image may be cut into several parts, which have one name.
        said = name, self._library.mtmd_input_chunk_get_n_tokens(chunk), count, view.n_tokens, _digest(self._path)
        return numbers_of_image(repr(said).encode(), count)


@functools.lru_cache
def _digest(path: str) -> str:
    return digest_of_file(path)


def view_for_images(llama: EngineLlama, call: Call) -> View:
    """The view for a Llama's chat handler, which decodes by itself."""
    handler: Any = llama.chat_handler
    library = getattr(handler, "_mtmd_cpp", None)
    if library is None or not hasattr(library, "mtmd_bitmap_set_id"):
        return View(llama, call)
    if not isinstance(library, _Library):
        handler._mtmd_cpp = _Library(library, os.fspath(handler.clip_model_path))
    return ImageView(llama, call)
