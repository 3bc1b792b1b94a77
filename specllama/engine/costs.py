"""T(n) of models as it was measured before: what it depends on, one small JSON file each, and how a loop comes by it.

Files are in the cache directory. They are read with distrust, since anything can be in them, and may be deleted at any
time.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import llama_cpp

from specllama import _core
from specllama.backend.cache import cache_dir, keyed_path, read_json, write_json
from specllama.backend.cpu import cpu_name
from specllama.backend.prepare import prepare_backend

from .model import Lora, Model

_LOGGER = logging.getLogger("specllama")
_FOLDER = "costs"  # of the cache directory
_FORMAT = 2
_SHORTEST, _LONGEST = 1e-9, 3600.0  # seconds of a batch
_MAX_AGE = 30 * 86_400.0  # seconds; measured anew then: a curve that was wrong must not be believed for ever
_STEEPEST = 2.0  # a batch of n tokens costs at most so many times n batches of one
_CHEAPEST = 0.5  # and at least so many times the smallest
_MOST_SIZES = 64
_ALL_UP_TO = 32  # these sizes are all kept, larger ones four for each doubling

_KERNELS_GENERATION = 4  # one more when ours become faster: what was measured before says nothing then
_MODEL = ("n_gpu_layers", "split_mode", "main_gpu")
# Of the context, besides threads and batches. Not all releases of llama_cpp have all of them.
_CONTEXT = ("offload_kqv", "op_offload", "flash_attn", "flash_attn_type", "type_k", "type_v", "ctx_type")

_MATERIAL = math.log(1.1)  # a size that costs a tenth more or less than the others say
_PAUSE = 1.0  # seconds between two writes


def costs_dir() -> Path:
    """The folder of the curves; it may not exist yet."""
    return cache_dir() / _FOLDER


def size_class(n: int) -> int:
    """A number that those sizes share of which one is enough: small sizes have one each."""
    return n if n <= _ALL_UP_TO else _ALL_UP_TO + math.ceil(4 * math.log2(n / _ALL_UP_TO))


def thinned(costs: Mapping[int, float]) -> dict[int, float]:
    """What a file holds of a curve: the largest size of each class, without those that cannot be true."""
    possible = {n: costs[n] for n in sorted(costs) if _SHORTEST <= costs[n] <= _LONGEST}
    wrong = _impossible(possible)
    of_class = {size_class(n): n for n in possible if n not in wrong}
    return {n: costs[n] for number, n in of_class.items() if number <= _MOST_SIZES}


def read(key: Mapping[str, Any]) -> dict[int, float]:
    """The seconds that batches of n tokens took, by n; empty if nothing is known, or nothing that can be believed.

    Args:
        key: what the curve depends on, see ``cost_key``.
    """
    try:
        return _checked(read_json(keyed_path(_FOLDER, key)), key)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: too many brackets, or no home folder
        _LOGGER.debug("no costs of %s as the %s are known: %s", key.get("file"), key.get("role"), error)
        return {}


def write(key: Mapping[str, Any], costs: Mapping[int, float]) -> None:
    """Keep a curve in place of the one before. Whoever reads meanwhile sees either of them.

    Raises:
        OSError, RuntimeError: it cannot be written, or there is no home folder to write to.
    """
    seconds = {str(n): value for n, value in thinned(costs).items()}
    write_json(keyed_path(_FOLDER, key), {"format": _FORMAT, "key": key, "measured": time.time(), "seconds": seconds})


def _checked(found: Any, key: Mapping[str, Any]) -> dict[int, float]:
    """The curve in what a file holds.

    Raises:
        ValueError: the file is not what `write` writes, is of something else, or holds what cannot be true.
    """
    if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("key") != key:
        raise ValueError("the file has another format, or another key")
    measured, seconds, now = found.get("measured"), found.get("seconds"), time.time()
    if not _is_number(measured) or not now - _MAX_AGE <= measured <= now:
        raise ValueError(f"measured at {measured!r}")
    if not isinstance(seconds, dict) or len(seconds) > _MOST_SIZES:
        raise ValueError("the file holds no curve")
    costs = {_checked_size(n): value for n, value in seconds.items()}
    for n, value in costs.items():
        if not _is_number(value) or not _SHORTEST <= value <= _LONGEST:
            raise ValueError(f"T({n}) is {value!r}")
    if wrong := _impossible(costs):
        raise ValueError(f"batches of {wrong} tokens cost less than the smallest, or more than their tokens one by one")
    return costs


def _impossible(costs: Mapping[int, float]) -> list[int]:
    """Sizes that were measured while something else held up the machine, or while it held up the others."""
    least = min(costs, default=0)
    return [n for n, s in costs.items() if not _CHEAPEST <= s / costs[least] <= _STEEPEST * n / least]


def _checked_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and text[0] != "0"):
        raise ValueError(f"{text!r} is no batch size")
    return int(text)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)  # a bool is none


def cost_key(model: Model, role: str) -> dict[str, Any]:
    """What T(n) of a model depends on: file, settings and machine, ready for JSON.

    Nothing native of the model is used: as a draft it may have been closed.

    Args:
        model: a target or a draft.
        role: ``"target"``, ``"head"`` or ``"draft"``. One model costs less as a draft, which needs logits for one token
            only.
    """
    settings = model.settings
    context = settings.context_params
    name = settings.kernels.instruction_set
    return {
        "role": role,
        "file": os.path.basename(settings.path),
        "size": _size(settings.path),
        "lora": _lora(settings.lora),
        **({"kv_overrides": dict(settings.overrides)} if settings.overrides else {}),  # of experts, say
        "file_type": settings.metadata.get("general.file_type"),
        "n_threads": settings.n_threads,
        "n_threads_batch": settings.n_threads_batch,
        "n_batch": settings.n_batch,
        "n_ubatch": context.n_ubatch,
        **{name: getattr(settings.model_params, name) for name in _MODEL},
        "tensor_split": None if settings.tensor_split is None else [float(share) for share in settings.tensor_split],
        **{name: getattr(context, name) for name in _CONTEXT if hasattr(context, name)},
        **({"kernels": f"{name}, {_KERNELS_GENERATION}"} if name else {}),
        **machine(),
    }


def _size(path: str) -> int | None:
    """Bytes; None if the file is gone, which a loaded model survives."""
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _lora(lora: Lora | None) -> dict[str, Any] | None:
    """The adapter, of which every layer computes more; None without one. Its scale costs nothing."""
    return None if lora is None else {"file": os.path.basename(lora.path), "size": _size(lora.path)}


@functools.lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """What of this machine and its llama.cpp decides about times, ready for JSON."""
    notes = prepare_backend().notes
    return {
        # Named only where there are any: what was measured elsewhere before stays known.
        **({"backend_notes": list(notes)} if notes else {}),
        "cpu": cpu_name(),
        "backend": llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "llama_cpp_python": llama_cpp.__version__,
    }


class CostMemory:
    """Gives a loop the curves that are known of its models, and keeps them where it has learned better.

    It disturbs no generation: what cannot be read is not known, and what cannot be written is not kept.
    """

    def __init__(self, loop: _core.Speculator | _core.Scheduler, target: Model, drafts: Mapping[str, Model]) -> None:
        self._loop = loop
        self._keys = {role: cost_key(model, role) for role, model in {"target": target, **drafts}.items()}
        self._kept: dict[str, dict[int, float]] = {}
        self._rest_until = 0.0
        self.restore()

    def restore(self) -> None:
        """Have the loop believe what is known, in place of what it has learned."""
        self._kept = {role: read(key) for role, key in self._keys.items()}
        self._loop.restore_costs([*self._kept.values()])

    def keep(self) -> None:
        """Write what has changed, if anything has and the last time is not just past."""
        now = time.monotonic()
        if now < self._rest_until or sys.is_finalizing():  # a stream may be closed when open() is gone already
            return
        known = dict(zip(self._keys, self._loop.costs, strict=False))  # a draft that cannot be used has none
        for role, key in self._keys.items():
            if changed(self._kept[role], known.get(role, {})):
                self._rest_until = now + _PAUSE
                self._write(role, key, known[role])

    def _write(self, role: str, key: dict[str, Any], costs: dict[int, float]) -> None:
        try:
            write(key, costs)
        except (OSError, RuntimeError) as error:
            _LOGGER.debug("what batches cost the %s cannot be kept: %s", role, error)
        else:
            self._kept[role] = thinned(costs)


def changed(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    """Whether a curve says another thing than the one before: of other sizes, or of one that costs another share.

    A size is missing only if a loop has unlearned it: it knows all that was restored.

    A factor that is common to all sizes is left out. A hot processor or a neighbour changes it from hour to hour, and
    a loop takes it from its own first batches anyway: only the shape is worth keeping.
    """
    old, new = _seconds_per_token(before), _seconds_per_token(now)
    if not new:
        return False
    if new.keys() != old.keys():
        return True
    shifts = [math.log(new[number] / old[number]) for number in new]
    common = statistics.median(shifts)
    return any(abs(shift - common) > _MATERIAL for shift in shifts)


def _seconds_per_token(costs: Mapping[int, float]) -> dict[int, float]:
    # By class: of large sizes another one stands for its class each time, and costs as much a token.
    return {size_class(n): seconds / n for n, seconds in thinned(costs).items()}


class KeptCurves:
    """All T(n) that were measured on this processor, by files that need not be loaded, whatever the settings."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Any, ...], tuple[float, dict[int, float]]] = {}
        try:
            files = sorted(costs_dir().glob("*.json"))
        except RuntimeError:  # there is no home folder
            return
        for file in files:
            try:
                found = read_json(file)
                key = found["key"]
                of_what, one = (key["file"], key["size"], key["role"]), (found["measured"], _checked(found, key))
                if key["cpu"] == cpu_name() and one[0] > self._newest.get(of_what, (0.0, {}))[0]:
                    self._newest[of_what] = one
            except (OSError, ValueError, RuntimeError, KeyError, TypeError):
                continue  # what is not believed is not known

    def of(self, path: str, role: str) -> dict[int, float]:
        """The curve of a file that was measured last; empty if none was.

        Args:
            path: a model or a head.
            role: ``"target"``, ``"head"`` or ``"draft"``.
        """
        return self._newest.get((os.path.basename(path), _size(path), role), (0.0, {}))[1]
