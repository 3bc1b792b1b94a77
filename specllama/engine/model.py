"""A model of llama.cpp's: its weights, its vocabulary, and one context over them."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar, cast

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend import libllama
from specllama.backend.brief import brief
from specllama.backend.kernel_use import KernelUse
from specllama.backend.owned import Closable
from specllama.models.loading import quiet
from specllama.models.weights_digest import Digest
from specllama.models.writers import why_no_writer

from .closed_when_gone import ClosedWhenGone
from .hidden import Hidden

Made = TypeVar("Made")
SEQUENCE = 0
"""The seq_id of a context that has one text."""
_RECURRENT_TENSORS = (".ssm.conv_kernel", ".shortconv.l_cache")
_WHOLE_MEMORIES = frozenset({"deepseek4"})
"""Architectures of which llama.cpp cannot copy a part of a sequence: it ends the process."""


@dataclasses.dataclass(frozen=True)
class Lora:
    """A LoRA adapter of a context."""

    path: str
    scale: float
    adapter: Any
    """llama.cpp's pointer to the adapter."""

    def apply(self, context: Any) -> None:
        """Have a context use the adapter, as ``llama_cpp.Llama`` does with its own context.

        Raises:
            RuntimeError: llama.cpp refuses the adapter.
        """
        if hasattr(llama_cpp, "llama_set_adapters_lora"):
            kind: Any = llama_cpp.llama_adapter_lora_p_ctypes
            adapters, scales = (kind * 1)(self.adapter), (ctypes.c_float * 1)(self.scale)
            failed = llama_cpp.llama_set_adapters_lora(context, adapters, 1, scales)
        else:  # before 0.3.17
            failed = llama_cpp.llama_set_adapter_lora(context, self.adapter, self.scale)
        if failed:
            raise RuntimeError(f"the LoRA adapter {os.path.basename(self.path)} cannot be applied to a context")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a model and its context were opened. The costs of batches depend on it. Further contexts are opened alike."""

    path: str
    metadata: Mapping[str, str]
    model_params: Any
    """``llama_model_params``."""
    context_params: Any
    """``llama_context_params``."""
    n_batch: int
    n_threads: int
    n_threads_batch: int
    kernels: KernelUse = dataclasses.field(default_factory=lambda: KernelUse(why_not="it was opened by llama_cpp"))
    tensor_split: Sequence[float] | None = None
    lora: Lora | None = None
    overrides: Mapping[str, Any] | None = None
    """``kv_overrides``."""
    hidden: Hidden | None = None
    """The hidden states that contexts show."""
    verbose: bool = False
    weights: Digest | None = None
    """The digest of the weights in the file; None if it is unknown."""

    @property
    def is_head(self) -> bool:
        """Whether the model is a head: it needs the hidden states of another model."""
        return self.hidden is not None and self.hidden.n_features > 0

    @property
    def has_spare(self) -> bool:
        """Whether the model's own context has a sequence besides the text's own, so that parts can be copied."""
        return bool(self.context_params.n_seq_max > 1 and self.context_params.kv_unified)

    def params_of_another(self) -> Any:
        """``llama_context_params`` of a further context over the weights, for generating texts.

        The further context has no embeddings and no snapshots: only the model's own context has them.
        """
        params = type(self.context_params).from_buffer_copy(self.context_params)
        params.embeddings, params.pooling_type = False, llama_cpp.LLAMA_POOLING_TYPE_NONE
        if hasattr(params, "n_rs_seq"):
            params.n_rs_seq = 0
        return params

    def decoder(
        self, context: int, name: str, taps: _core.Taps | None, n_ctx: int = 0, num_texts: int = 1
    ) -> _core.Decoder:
        """Make the native decoder of a context that was opened with these settings, for so many texts."""
        params = self.context_params
        has_spare = self.has_spare and params.n_seq_max > num_texts and self.knows_memory
        embeds = bool(self.context_params.embeddings)
        hidden = Hidden(()) if self.hidden is None else self.hidden
        with quiet(self.verbose):
            return _core.Decoder(
                *(libllama.API, context, name, n_ctx, taps),
                n_features=hidden.n_features,
                width=hidden.width_of(llama_cpp.llama_get_model(context)),
                encodes=hidden.encodes,
                embeds=embeds,
                block=hidden.noise_block,
                of_wanted=hidden.of_wanted,
                num_layers=hidden.num_layers,
                choose_layer=hidden.choose_layer,
                spare=num_texts if has_spare else -1,
                keeps_window=bool(getattr(params, "swa_full", False)),
                has_parts=self.metadata.get("general.architecture") not in _WHOLE_MEMORIES,
                target=hidden.memory,
            )

    @property
    def knows_memory(self) -> bool:
        """Whether llama.cpp says of which kind the memory is.

        llama-cpp-python 0.3.16 takes a hybrid for a plain memory. Then parts of it would lack the recurrent state.
        """
        return hasattr(llama_cpp, "llama_model_is_hybrid") or not self.has_recurrent_tensors

    @property
    def has_recurrent_tensors(self) -> bool:
        """Whether the file's metadata say that the model has recurrent states."""
        return any(name.endswith(_RECURRENT_TENSORS) for name in self.metadata)


class Owner(Protocol):
    """The owner of a lent model. It may use the model's context between two texts of the borrower."""

    def used(self) -> npt.NDArray[np.int32] | None:
        """The tokens in the context, if the owner has used the context since the last call; else None.

        From this call on, the owner must assume that its own tokens are no longer in the context.
        """


def closed() -> _core.ClosedError:
    """The error that is raised when a closed model is used."""
    return _core.ClosedError("this Llama is closed: create a new one")


def raise_closed() -> NoReturn:
    """Raise ClosedError."""
    raise closed()


class Model:
    """Weights, their vocabulary, and one context. Several users may share a model; its opener closes it.

    Args:
        address: the address of the ``llama_model``.
        context: the address of the ``llama_context``.
        settings: how the model and the context were opened.
        frees: two objects: closing the first frees the context, closing the second the weights.
        name: ``"target"`` or ``"draft"``, for messages.
        owner: the owner, if the owner may use the context, too.
        taps: shows the context's hidden states; None if the context was not made to show any.

    Attributes:
        vocab: the address of the vocabulary.
        n_vocab: how many tokens the vocabulary has.
        tokenizer: makes tokens of texts.
        n_ctx: how many tokens one text may have.
        is_open: whether the context exists.
    """

    def __init__(
        self,
        address: int,
        context: int,
        settings: Settings,
        frees: tuple[Closable, Closable],
        *,
        name: str = "target",
        owner: Owner | None = None,
        taps: _core.Taps | None = None,
    ) -> None:
        self.address = address
        self.context = context
        self.settings = settings
        self.name = name
        self.vocab = int(ctypes.cast(llama_cpp.llama_model_get_vocab(address), ctypes.c_void_p).value or 0)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(cast(Any, self.vocab)))
        self.tokenizer = _core.Tokenizer(libllama.API, self.vocab)
        self.n_ctx = int(llama_cpp.llama_n_ctx(context))
        self.is_open = True
        self._owner = owner
        self._taps = taps
        self._sequence: _core.Sequence | None = None
        self._made: dict[object, Any] = {}
        self._pieces: dict[tuple[int, bool], bytes] = {}  # the pieces of tokens that were asked for before
        self._making = threading.Lock()
        self._lock = threading.RLock()  # reentrant: the garbage collector may call `close` here
        self._context, self._weights = frees
        self._has_context = True
        # Weak, so that a user also disappears if Ctrl-C comes before its block of `kept` can discard it.
        self._users = weakref.WeakSet[_User]()

    # The context

    @property
    def sequence(self) -> _core.Sequence:
        """The one sequence of the context. All users of the context share it.

        Raises:
            ValueError: the model does not write text from left to right (an embedding model), or has no weights.
            ClosedError: the model is closed.
        """
        with self._lock:
            if self._sequence is None:
                self.require_weights()
                self._require_writer()
                self._sequence = _core.Sequence(self.settings.decoder(self.context, self.name, self._taps), SEQUENCE)
            return self._sequence

    @property
    def n_ctx_asked(self) -> int:
        """The `n_ctx` that was asked for. llama.cpp may have rounded it up."""
        return int(self.settings.context_params.n_ctx) or self.n_ctx

    def of_draft(self) -> dict[str, Any]:
        """The arguments that a draft model for this target is opened with, unless the user gives others."""
        settings = self.settings
        return {
            "n_ctx": self.n_ctx_asked,
            "n_batch": settings.n_batch,
            "n_threads": settings.n_threads,
            "n_threads_batch": settings.n_threads_batch,
            "kernels": settings.kernels.choice,
            # llama.cpp copies 4-bit weights into another layout. A mapped file would stay in memory beside the copy.
            "use_mmap": False,
        }

    @property
    def is_in_use(self) -> bool:
        """Whether a round uses the context now: in another thread, or in this thread, as the caller of a callback."""
        return self._sequence is not None and self._sequence.decoder.is_in_use

    @property
    def why_no_rollback(self) -> str | None:
        """Why the context's memory cannot be rolled back, to forget rejected tokens; None if it can."""
        if self.sequence.decoder.rollback != "none":
            return None
        return (
            f"the {self.name}'s memory is recurrent, and llama-cpp-python {llama_cpp.__version__} cannot copy its "
            "state to roll it back: install a later release"
        )

    @property
    def is_shareable(self) -> bool:
        """Whether one context can hold several texts: not where llama.cpp cannot copy recurrent states."""
        return self.sequence.decoder.rollback != "none" and self.settings.knows_memory

    def clear(self) -> None:
        """Empty the context's memory, and set all its numbers to 0: a NaN in a cell would reach later texts.

        Raises:
            ClosedError: the model is closed.
        """
        self.require_open()
        memory = llama_cpp.llama_get_memory(self.context)
        if memory is not None:
            llama_cpp.llama_memory_clear(memory, True)

    def used_by_owner(self) -> npt.NDArray[np.int32] | None:
        """The tokens in the context, if its owner has used the context since the last call; else None."""
        return None if self._owner is None else self._owner.used()

    # What it is

    def describe(self) -> dict[str, Any]:
        """The properties of the model that measurements depend on, ready for JSON.

        Raises:
            ClosedError: the model is closed.
        """
        self.require_open()
        text = ctypes.create_string_buffer(1024)
        llama_cpp.llama_model_desc(self.address, cast(Any, text), len(text))
        settings = self.settings
        return {
            "name": settings.metadata.get("general.name", ""),
            "file": os.path.basename(settings.path),  # a whole path would tell the user's name
            "description": text.value.decode("utf-8", errors="replace"),
            "file_type": settings.metadata.get("general.file_type"),
            "size": llama_cpp.llama_model_size(self.address),
            "parameters": llama_cpp.llama_model_n_params(self.address),
            "n_ctx": self.n_ctx,
            "n_gpu_layers": settings.model_params.n_gpu_layers,
            "kernels": str(settings.kernels),
            "batch_invariant": self._sequence is not None and self._sequence.decoder.batch_invariant,
            "n_threads": llama_cpp.llama_n_threads(self.context),
            "n_threads_batch": llama_cpp.llama_n_threads_batch(self.context),
        }

    # Opening and closing

    def require_weights(self) -> None:
        """Raise ValueError if the model was opened without its weights, and ClosedError if it is closed."""
        self.require_open()
        if self.settings.model_params.vocab_only:
            raise ValueError(
                f"the {self.name} was opened with vocab_only=True: it has no weights, and can only tokenize"
            )

    def require_embedder(self) -> None:
        """Raise ValueError if llama.cpp would abort the process when it computes embeddings with this model."""
        address: Any = self.address
        if llama_cpp.llama_model_has_encoder(address) and llama_cpp.llama_model_has_decoder(address):
            raise ValueError(
                f"the {self.name} has an encoder and a decoder (T5), which specllama does not run: take another model"
            )

    def _require_writer(self) -> None:
        if self.settings.is_head:  # a head drafts in this context for its target
            return
        attention = int(self.settings.context_params.attention_type)
        why = why_no_writer(self.settings.metadata, self.settings.overrides, attention)
        if why is not None:
            raise ValueError(f"the {self.name} cannot generate text: {why}. It embeds at most (embedding=True)")

    def require_open(self) -> None:
        """Raise ClosedError unless the model is open."""
        if not self.is_open:
            raise_closed()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A block in which the weights stay in memory, even if their owner closes the model meanwhile.

        Raises:
            ClosedError: the model is closed.
        """
        user = _User()
        try:
            with self._lock:
                self.require_open()
                self._users.add(user)
            yield
        finally:
            with self._lock:
                self._users.discard(user)
                self._free_unused()

    def end_sequence(self) -> None:
        """Have every later use of the context's sequence raise ClosedError.

        Raises:
            BusyError: another thread decodes on the sequence.
        """
        with self._lock:
            if self._sequence is not None:
                self._sequence.decoder.close()

    def close(self) -> None:
        """Free the context now, and the weights when no user keeps them any more. Only the model's owner calls this.

        If Ctrl-C has interrupted a call, a further call frees what is still there.

        Raises:
            BusyError: another thread decodes on the context. Then nothing was freed.
        """
        with self._lock:
            self.end_sequence()
            self.is_open = False
            with quiet(self.settings.verbose):  # llama.cpp logs the sizes of a context's buffers when it is freed, too
                self._context.close()
            self._has_context = False
            self._free_unused()

    def _free_unused(self) -> None:
        if not self._has_context and not self._users:
            self._weights.close()

    # The vocabulary

    @property
    def bos(self) -> int:
        """The token with which texts begin; -1 if there is none."""
        return int(llama_cpp.llama_vocab_bos(cast(Any, self.vocab)))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token, which may be a part of a character. llama.cpp is asked only once for each token.

        Args:
            token: a token of the vocabulary.
            special: whether a special token gives its name. If not, it gives no bytes.

        Raises:
            ClosedError: the model is closed.
        """
        found = self._pieces.get((token, special))
        if found is None:
            with self.kept():
                found = self._pieces[token, special] = piece_of(self.vocab, token, special)
        return found

    def once(self, make: Callable[[Model], Made]) -> Made:
        """The result of ``make(self)``, which may take long. The first call makes and keeps it for later calls."""
        with self._making:
            if make not in self._made:
                self._made[make] = make(self)
            return cast(Made, self._made[make])

    def ends_text(self, token: int) -> bool:
        """Whether this token ends a text.

        Raises:
            ClosedError: the model is closed.
        """
        self.require_open()
        return bool(llama_cpp.llama_vocab_is_eog(cast(Any, self.vocab), token))


class OpenedModel(ClosedWhenGone, Model):
    """A model that was opened by llama.cpp's own functions. It closes itself when it is deleted."""

    def close(self) -> None:
        """See the base class."""
        if "_users" in self.__dict__:  # else __init__ failed early
            super().close()


class _User:
    """Stands for a running block of `Model.kept`, which keeps the weights in memory."""


def piece_of(vocabulary: int, token: int, special: bool) -> bytes:
    """The bytes of a token, as in `Model.piece`. ``vocabulary`` is the address of a vocabulary."""
    vocab, size = cast(Any, vocabulary), 32
    if llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:  # else llama.cpp would end the process
        return b""
    while True:
        room = ctypes.create_string_buffer(size)
        count = llama_cpp.llama_token_to_piece(vocab, token, cast(Any, room), size, 0, special)
        if count >= 0:
            return room.raw[:count]
        size = -count


def token_ids(
    given: Sequence[int] | npt.NDArray[Any], what: str, n_vocab: int, held: Sequence[int] | npt.NDArray[Any] = ()
) -> npt.NDArray[np.int32]:
    """Check tokens, and return them in the form that the native loop takes.

    Args:
        given: the tokens.
        what: a name for the tokens, for messages.
        n_vocab: how many tokens the vocabulary has.
        held: the tokens that a memory holds. Where `given` begins with the same numbers, they may also be no tokens (of
            an image), because they need not be decoded again.

    Raises:
        TypeError: `given` is no sequence of integers.
        ValueError: a number is not a token of the vocabulary.
    """
    try:
        tokens = np.asarray(given)
    except ValueError:  # lists of several lengths
        raise TypeError(f"{what} must be a sequence of token ids, not of lists") from None
    if tokens.ndim == 1 and tokens.dtype.kind in "Of" and all(isinstance(token, int) for token in given):
        tokens = np.array(given, dtype=object)  # a number does not fit into 64 bits
    elif tokens.size and (tokens.dtype.kind not in "iu" or tokens.ndim != 1):
        raise TypeError(f"{what} must be a sequence of token ids, not of {tokens.dtype} values")
    wrong = np.flatnonzero((tokens < 0) | (tokens >= n_vocab))
    if wrong.size and len(held):
        most = min(len(tokens), len(held))
        others = np.flatnonzero(tokens[:most] != held[:most])
        wrong = wrong[wrong >= (others[0] if others.size else most)]
    if wrong.size and tokens[wrong[0]] <= _core.FIRST_EMBEDDING:
        raise ValueError(
            f"{what}: place {wrong[0]} is no token: somebody else decoded an image there, or what is not known. It is "
            "read where the memory still holds it, and cannot be decoded again: give the image again, by "
            "create_chat_completion"
        )
    if wrong.size:
        raise ValueError(
            f"{what}: token {brief(tokens[wrong[0]])} at index {wrong[0]} is out of range: the vocabulary has the "
            f"tokens 0 to {n_vocab - 1}; take them from this model's tokenize()"
        )
    return tokens.astype(np.int32)
