"""Many texts on many machines: a class for ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import numpy as np

from .backend.cpu import default_threads
from .drop_in import nearest
from .many import Outcome

try:
    import pyarrow
    import ray
except ImportError as error:
    raise ImportError(f'specllama.ray needs {error.name}: pip install "specllama[ray]"') from error

__all__ = ["Completions"]

Batch = Any
"""An Arrow table, or NumPy arrays by the names of their columns: what Ray Data hands over."""

_COUNTS = ("num_prompt_tokens", "num_tokens", "num_draft_tokens", "num_accepted_tokens")
_SCHEMA = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("text", "finish_reason", "error", "response")),
        *((name, pyarrow.int64()) for name in _COUNTS),
    ]
)
_SEED = 0
_EXACT_FLOATS = 2**53  # floats hold whole numbers below this one exactly


class Completions:
    """Answers the rows of a dataset. Each actor loads the models once.

    A row gets these columns: ``text``, ``finish_reason``, ``error`` (empty, or why this row has no answer),
    ``response`` (as JSON, all that ``create_completion`` or ``create_chat_completion`` returns; empty after an error)
    and the counters ``num_prompt_tokens``, ``num_tokens``, ``num_draft_tokens`` and ``num_accepted_tokens`` of
    ``Stats``.

    Give ``map_batches`` the ``batch_format="pyarrow"``. NumPy arrays will do for prompts. They cannot hold chats.

    Args:
        model_path: the target, as for ``Llama``. It must be there on every machine.
        column: the column with the prompts; None for ``prompt``, or ``messages`` in a chat.
        chat: whether the column's values are lists of messages instead of texts or lists of token ids.
        arguments: arguments of ``create_completion`` or ``create_chat_completion`` for every row. The default ``seed``
            is 0, so that a row which Ray computes again gets the same text.
        row_arguments: columns with arguments of each row. A row's own value replaces the common one. If some rows have
            no value, Ray turns the column's whole numbers into floats: these are turned back.
        prefix: the beginning of the names of the new columns.
        llama_kwargs: everything else that ``Llama`` takes, such as ``draft_model``, ``n_ctx`` and ``max_parallel``.
            Unless given, ``n_threads`` is the number of CPUs that Ray gave to the actor.

    Raises:
        TypeError, ValueError: an argument that is not known, or out of range, or what ``Llama`` raises.
    """

    def __init__(
        self,
        model_path: str,
        *,
        column: str | None = None,
        chat: bool = False,
        arguments: Mapping[str, Any] | None = None,
        row_arguments: Iterable[str] = (),
        prefix: str = "",
        **llama_kwargs: Any,
    ) -> None:
        from .llama import Llama

        self._name = "messages" if chat else "prompt"
        self._column = column or self._name
        self._row_arguments = (row_arguments,) if isinstance(row_arguments, str) else tuple(row_arguments)
        self._arguments = {"seed": _SEED, **(arguments or {})}
        self._prefix = prefix
        method = Llama.create_chat_completion if chat else Llama.create_completion
        known = inspect.signature(method).parameters.keys() - {"self", "stream", self._name}
        _check_known("arguments", self._arguments, known)
        _check_known("row_arguments", self._row_arguments, known)
        if llama_kwargs.pop("seed", None) is not None:
            raise ValueError("a seed of the Llama depends on the order of the rows: give one in `arguments`")
        threads = llama_kwargs.pop("n_threads", None) or _threads()
        kwargs = {"n_threads": threads, "n_threads_batch": threads, "verbose": False, **llama_kwargs}
        llm = Llama(model_path, **kwargs)
        self._create = llm.create_chat_completions if chat else llm.create_completions

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the new columns. The Llama's ``max_parallel`` rows are under way at once.

        Raises:
            ValueError: a column is missing, or a new column has the name of an old one.
            TypeError: chats in NumPy arrays.
            MemoryError: there is no room for so many texts.
        """
        is_table = isinstance(batch, pyarrow.Table)
        if self._name == "messages" and not is_table:
            raise TypeError('chats must come as Arrow tables: give map_batches the argument batch_format="pyarrow"')
        self._check_columns(batch.column_names if is_table else list(batch))
        outcomes = cast("list[Outcome]", self._create(self._items(batch), progress=False, **self._arguments))
        new = pyarrow.Table.from_pylist([_row(outcome) for outcome in outcomes], _SCHEMA)
        if not is_table:
            return {**batch, **{self._prefix + name: new[name].to_numpy() for name in _SCHEMA.names}}
        for name in _SCHEMA.names:
            batch = batch.append_column(self._prefix + name, new[name])
        return batch

    def _check_columns(self, names: list[str]) -> None:
        if missing := [name for name in (self._column, *self._row_arguments) if name not in names]:
            raise ValueError(f"the rows have no column {missing[0]!r}: they have {', '.join(map(repr, names))}")
        if taken := [name for name in _SCHEMA.names if self._prefix + name in names]:
            raise ValueError(
                f'the rows have a column {self._prefix + taken[0]!r} already: give a prefix, such as prefix="answer_"'
            )

    def _items(self, batch: Batch) -> list[dict[str, Any]]:
        """The arguments of each row."""
        items = [{self._name: value} for value in _values(batch, self._column)]
        for name in self._row_arguments:
            for item, value in zip(items, _values(batch, name), strict=True):
                if value is not None and value == value:  # a number that is missing in a NumPy array is NaN
                    item[name] = _as_whole(value)
        return items


def _values(batch: Batch, name: str) -> list[Any]:
    """A column in Python's own types."""
    if isinstance(batch, pyarrow.Table):
        return [_without_missing(value) for value in batch.column(name).to_pylist()]
    return [value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for value in batch[name]]


def _as_whole(value: Any) -> Any:
    """A float without fraction as an int. A float of 2**53 or more, which may have lost digits, stays a float."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS else value


def _without_missing(value: Any) -> Any:
    """A value without fields that are None, because only other rows have them. A message's content may be None."""
    if isinstance(value, dict):
        return {name: _without_missing(each) for name, each in value.items() if each is not None or name == "content"}
    return [_without_missing(each) for each in value] if isinstance(value, list) else value


def _threads() -> int:
    """The number of CPUs that Ray gave to this actor. Ray only counts them: the actor itself must use no more."""
    given = ray.get_runtime_context().get_assigned_resources().get("CPU", 0) if ray.is_initialized() else 0
    return max(1, int(given)) if given else default_threads()


def _check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for an unknown name before there are rows: else every row would get the error."""
    for name in names:
        if name not in known:
            raise TypeError(f"{what} has {name!r}, which is no argument of a completion{nearest(name, sorted(known))}")


def _row(outcome: Outcome) -> dict[str, Any]:
    """The new columns of a row. No value is null: a column of nulls alone would lose its type."""
    counts = {name: getattr(outcome.stats, name) for name in _COUNTS}
    if outcome.error is not None:
        problem = " ".join(f"{type(outcome.error).__name__}: {outcome.error}".split())
        return {"text": "", "finish_reason": "", "error": problem, "response": "", **counts}
    response = outcome.response or {}
    reason = str(response["choices"][0]["finish_reason"])
    return {"text": outcome.text, "finish_reason": reason, "error": "", "response": json.dumps(response), **counts}
