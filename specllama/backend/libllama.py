"""Reaches libllama: resolves addresses in the library that llama_cpp has loaded, and checks its ABI.

The extension links to no llama library (a linked one would map a second copy beside llama_cpp's). Nothing else in
Python touches addresses.
"""

from __future__ import annotations

import ctypes
import re
import types
from collections.abc import Mapping
from typing import Any

import llama_cpp
from llama_cpp import _internals
from llama_cpp.llama_grammar import LlamaGrammar

from specllama import _core
from specllama.grammars.gbnf import check_gbnf

_SUPPORTED = "llama-cpp-python >= 0.3.16, < 0.4"
_REMEDY = f"specllama works with {_SUPPORTED}: pip install --upgrade 'llama-cpp-python>=0.3.16,<0.4' specllama"
# Whether llama.cpp survives loops without text (its pull request 18604) and great repetitions. This release does for
# sure, some before it may.
_RECENT = tuple(map(int, re.findall(r"\d+", llama_cpp.__version__)[:3])) >= (0, 3, 26)


def load_api(library: types.ModuleType | Any = llama_cpp) -> _core.LlamaApi:
    """Resolve every libllama function that the extension calls. It does without the optional ones.

    Args:
        library: the module that holds the ctypes functions and structures: ``llama_cpp``.

    Raises:
        ImportError: a function is missing or takes another number of arguments, or a structure is laid out
            differently. Names the installed version and what to do.
    """
    _check_structs(library)
    return _core.LlamaApi(_addresses(library))


def _addresses(library: Any) -> Mapping[str, int]:
    addresses = {}
    for name, num_arguments in _core.required_functions():
        function = getattr(library, name, None)
        if function is None:
            raise _mismatch(library, f"it has no function {name}")
        found = len(function.argtypes or ())
        if found != num_arguments:
            raise _mismatch(library, f"its {name} takes {found} arguments, and {num_arguments} were expected")
        addresses[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    for name, num_arguments in _core.optional_functions():
        function = getattr(library, name, None)
        if function is not None and len(function.argtypes or ()) == num_arguments:
            addresses[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return addresses


def _check_structs(library: Any) -> None:
    # A size check is not enough: fields have been inserted without a change of size.
    for name, expected in _core.struct_layouts():
        struct = getattr(library, name)
        fields = [(field[0], getattr(struct, field[0])) for field in struct._fields_]
        found = [(field, place.offset, place.size) for field, place in fields]
        if [*found, ("", 0, ctypes.sizeof(struct))] != expected:
            raise _mismatch(library, f"its {name} is laid out as {found}, and {expected[:-1]} was expected")


def _mismatch(library: Any, what: str) -> ImportError:
    version = getattr(library, "__version__", "of unknown version")
    return ImportError(f"the installed llama-cpp-python {version} does not fit: {what}. {_REMEDY}")


API = load_api()


def address_of(name: str) -> int:
    """Where a function of libllama is."""
    return ctypes.cast(getattr(llama_cpp, name), ctypes.c_void_p).value or 0


SEQUENCE = 0
"""The seq_id that llama_cpp.Llama itself works on."""


def sequence_of(llama: llama_cpp.Llama, name: str) -> _core.Sequence:
    """The one sequence of a Llama, over its native context. All who use the Llama as their draft share it.

    Args:
        llama: an open Llama.
        name: ``"target"`` or ``"draft"``, for messages.

    Raises:
        ValueError: the model keeps no KV cache (an embedding model).
    """
    sequence: _core.Sequence | None = llama.__dict__.get("_specllama_sequence")
    if sequence is None:
        if llama.model_params.vocab_only:
            raise ValueError(f"the {name} was opened with vocab_only=True: it has no weights, and can only tokenize")
        sequence = _core.Sequence(_core.Decoder(API, int(llama._ctx.ctx), name), SEQUENCE)
        llama.__dict__["_specllama_sequence"] = sequence
    return sequence


def first_vocabulary_difference(
    target: _internals.LlamaModel, draft: _internals.LlamaModel
) -> tuple[int, bytes, bytes] | None:
    """The first token whose text differs, with the target's and the draft's text; None if none does."""
    return _core.first_vocabulary_difference(API, _vocab(target), _vocab(draft))


def _vocab(model: _internals.LlamaModel) -> int:
    return int(ctypes.cast(model.vocab, ctypes.c_void_p).value or 0)


def grammar_of(llama: llama_cpp.Llama, grammar: LlamaGrammar) -> _core.Grammar:
    """The grammar over the tokens of an open Llama, at its beginning.

    Raises:
        ValueError: llama.cpp cannot parse it, or would not survive it.
        TypeError: not a LlamaGrammar.
    """
    if not isinstance(grammar, LlamaGrammar):
        raise TypeError(f"grammar={grammar!r} must be a llama_cpp.LlamaGrammar: make one by LlamaGrammar.from_string")
    if "\0" in grammar._grammar:  # where C would take it to end
        raise ValueError("the grammar has a null character in it: take it out")
    check_gbnf(grammar._grammar, _RECENT)
    vocab = _vocab(llama._model)
    first_bytes: _core.FirstBytes | None = llama.__dict__.get("_specllama_first_bytes")
    if first_bytes is None:
        first_bytes = llama.__dict__["_specllama_first_bytes"] = _core.FirstBytes(API, vocab)
    return _core.Grammar(API, vocab, first_bytes, grammar._grammar, grammar._root)


def sequence_breakers_of(llama: llama_cpp.Llama, texts: tuple[str, ...]) -> _core.SequenceBreakers:
    """The texts in the tokens of an open Llama, which remembers those of the last call.

    Raises:
        ValueError: an empty text, one that is too long, or too many.
    """
    known: tuple[tuple[str, ...], _core.SequenceBreakers] | None = llama.__dict__.get("_specllama_breakers")
    if known is None or known[0] != texts:
        known = (texts, _core.breakers_of_texts(API, _vocab(llama._model), list(texts), _token_texts_of(llama)))
        llama.__dict__["_specllama_breakers"] = known
    return known[1]


def _token_texts_of(llama: llama_cpp.Llama) -> _core.TokenTexts:
    texts: _core.TokenTexts | None = llama.__dict__.get("_specllama_token_texts")
    if texts is None:
        texts = llama.__dict__["_specllama_token_texts"] = _core.TokenTexts(API, _vocab(llama._model))
    return texts


def why_no_rollback(llama: llama_cpp.Llama, name: str) -> str | None:
    """Why the memory of an open Llama cannot forget its last tokens; None if it can."""
    if sequence_of(llama, name).decoder.rollback != "none":
        return None
    return (
        f"the {name}'s memory is recurrent, and llama-cpp-python {llama_cpp.__version__} cannot copy its state "
        "to roll it back: install a later release"
    )
