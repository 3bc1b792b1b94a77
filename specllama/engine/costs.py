"""Measured curves T(n), the seconds of a batch of n tokens: what they depend on, their files, how a loop gets them.

Each curve is a small JSON file in the cache directory, which may be deleted at any time. Other programs may have
changed a file, so its content is checked when it is read.
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
from typing import TYPE_CHECKING, Any

import llama_cpp

from specllama import _core
from specllama.backend.cache import cache_dir, is_number, keyed_path, read_json, write_json
from specllama.backend.cpu import cpu_name
from specllama.backend.folders import files_in
from specllama.backend.prepare import prepare_backend

from .expected_gain import Expected, expected
from .model import Lora, Model

if TYPE_CHECKING:
    from specllama.models.found_drafts import Survey

_LOGGER = logging.getLogger("specllama")
_FOLDER = "costs"  # in the cache directory
_FORMAT = 2
_SHORTEST, _LONGEST = 1e-9, 3600.0  # the least and the most seconds of a batch; other values are not believed
_MAX_AGE = 30 * 86_400.0  # seconds; an older curve is measured anew, so that a wrong curve is not believed for ever
_STEEPEST = 2.0  # a batch of n tokens costs at most this factor times n batches of one token
_CHEAPEST = 0.5  # a batch costs at least this factor times the smallest batch
_MOST_SIZES = 64  # the most batch sizes in a file
_ALL_UP_TO = 32  # all batch sizes up to this one are kept; of larger sizes, four for each doubling

KERNELS_GENERATION = 7  # add one when our kernels become faster or round otherwise: what older ones left is not used
_MODEL = ("n_gpu_layers", "split_mode", "main_gpu")
# Fields of the context's parameters, besides threads and batches. Some releases of llama_cpp lack some of these fields.
_CONTEXT = ("offload_kqv", "op_offload", "flash_attn", "flash_attn_type", "type_k", "type_v", "ctx_type")

_MATERIAL = math.log(1.1)  # a size has changed if its cost has risen or fallen by a tenth relative to the others
_PAUSE = 1.0  # the least seconds between two writes of curves by one loop


def costs_dir() -> Path:
    """The folder of the curves; it may not exist yet."""
    return cache_dir() / _FOLDER


def size_class(n: int) -> int:
    """The class of a batch size. A file keeps one size of each class. Each small size is a class of its own."""
    return n if n <= _ALL_UP_TO else _ALL_UP_TO + math.ceil(4 * math.log2(n / _ALL_UP_TO))


def thinned(costs: Mapping[int, float]) -> dict[int, float]:
    """The part of a curve that a file holds: the largest size of each class, without sizes with impossible costs."""
    possible = {n: costs[n] for n in sorted(costs) if _SHORTEST <= costs[n] <= _LONGEST}
    wrong = _impossible(possible)
    of_class = {size_class(n): n for n in possible if n not in wrong}
    return {n: costs[n] for number, n in of_class.items() if number <= _MOST_SIZES}


def read(key: Mapping[str, Any]) -> dict[int, float]:
    """The seconds that batches of n tokens took, by n. Empty if there is no file, or its content is not valid.

    Args:
        key: what the curve depends on, as ``cost_key`` gives it.
    """
    try:
        return _checked(read_json(keyed_path(_FOLDER, key)), key)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: brackets nested too deeply, or no home folder
        _LOGGER.debug("no costs of %s as the %s are known: %s", key.get("file"), key.get("role"), error)
        return {}


def write(key: Mapping[str, Any], costs: Mapping[int, float]) -> None:
    """Replace the file of a curve. Other processes read either the old curve or the new one, and no mixture.

    Raises:
        OSError, RuntimeError: the file cannot be written, or there is no home folder.
    """
    seconds = {str(n): value for n, value in thinned(costs).items()}
    write_json(keyed_path(_FOLDER, key), {"format": _FORMAT, "key": key, "measured": time.time(), "seconds": seconds})


def _checked(found: Any, key: Mapping[str, Any]) -> dict[int, float]:
    """The curve in the content of a file.

    Raises:
        ValueError: the content does not have the form that `write` gives it, has another key, or its costs are
            impossible.
    """
    if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("key") != key:
        raise ValueError("the file has another format, or another key")
    measured, seconds, now = found.get("measured"), found.get("seconds"), time.time()
    if not is_number(measured) or not now - _MAX_AGE <= measured <= now:
        raise ValueError(f"measured at {measured!r}")
    if not isinstance(seconds, dict) or len(seconds) > _MOST_SIZES:
        raise ValueError("the file holds no curve")
    costs = {_checked_size(n): value for n, value in seconds.items()}
    for n, value in costs.items():
        if not is_number(value) or not _SHORTEST <= value <= _LONGEST:
            raise ValueError(f"T({n}) is {value!r}")
    if wrong := _impossible(costs):
        raise ValueError(f"batches of {wrong} tokens cost less than the smallest, or more than their tokens one by one")
    return costs


def _impossible(costs: Mapping[int, float]) -> list[int]:
    """The sizes whose costs do not fit the other sizes': other programs have disturbed these measurements."""
    least = min(costs, default=0)
    return [n for n, s in costs.items() if not _CHEAPEST <= s / costs[least] <= _STEEPEST * n / least]


def _checked_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and text[0] != "0"):
        raise ValueError(f"{text!r} is no batch size")
    return int(text)


def cost_key(model: Model, role: str) -> dict[str, Any]:
    """Everything that T(n) of a model depends on, ready for JSON: the model's file, its settings and the machine.

    The model may be closed: nothing native of it is used.

    Args:
        model: a target or a draft.
        role: ``"target"``, ``"head"``, ``"draft"`` or ``"inner"``. A batch costs less in a draft than in a target,
            because a draft needs logits for one token only.
    """
    settings = model.settings
    context = settings.context_params
    name = settings.kernels.instruction_set
    return {
        "role": role,
        "file": os.path.basename(settings.path),
        "size": _size(settings.path),
        "lora": _lora(settings.lora),
        **({"kv_overrides": dict(settings.overrides)} if settings.overrides else {}),  # such as the number of experts
        "file_type": settings.metadata.get("general.file_type"),
        "n_threads": settings.n_threads,
        "n_threads_batch": settings.n_threads_batch,
        "n_batch": settings.n_batch,
        "n_ubatch": context.n_ubatch,
        **{name: getattr(settings.model_params, name) for name in _MODEL},
        "tensor_split": None if settings.tensor_split is None else [float(share) for share in settings.tensor_split],
        **{name: getattr(context, name) for name in _CONTEXT if hasattr(context, name)},
        **({"kernels": f"{name}, {KERNELS_GENERATION}"} if name else {}),
        **machine(),
    }


def _size(path: str) -> int | None:
    """The size of a file in bytes; None if the file is gone. A loaded model stays usable then."""
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _lora(lora: Lora | None) -> dict[str, Any] | None:
    """A LoRA adapter's part of the key; None without an adapter. The scale is not in it, because it changes no cost."""
    return None if lora is None else {"file": os.path.basename(lora.path), "size": _size(lora.path)}


@functools.lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """The properties of this machine and its llama.cpp that times depend on, ready for JSON."""
    notes = prepare_backend().notes
    return {
        # The field is left out where there are no notes, so that older files of such machines stay valid.
        **({"backend_notes": list(notes)} if notes else {}),
        "cpu": cpu_name(),
        "backend": llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "llama_cpp_python": llama_cpp.__version__,
    }


class CostMemory:
    """Gives a loop the known curves of its models, and writes the curves that the loop has learned to files.

    No error ends a generation: a curve that cannot be read counts as unknown, and one that cannot be written is lost.

    Args:
        loop: the loop.
        target: the target.
        drafts: by role, the other models that the loop times, in the loop's order. None stands for a head that is no
            llama.cpp model: its curve is not kept.
    """

    def __init__(
        self, loop: _core.Speculator | _core.Scheduler, target: Model, drafts: Mapping[str, Model | None]
    ) -> None:
        self._loop = loop
        timed = {"target": target, **drafts}
        self._keys = {role: None if model is None else cost_key(model, role) for role, model in timed.items()}
        self._kept: dict[str, dict[int, float]] = {}
        self._rest_until = 0.0
        self.restore()

    def restore(self) -> None:
        """Read the curves from the files. The loop uses them, and forgets the costs that it has learned."""
        self._kept = {role: {} if key is None else read(key) for role, key in self._keys.items()}
        self._loop.restore_costs([*self._kept.values()])

    def keep(self) -> None:
        """Write the curves that have changed, unless some were written less than a second ago."""
        now = time.monotonic()
        if now < self._rest_until or sys.is_finalizing():  # at exit open() may be gone already
            return
        known = dict(zip(self._keys, self._loop.costs, strict=False))  # a draft that cannot be used has no costs
        for role, key in self._keys.items():
            if key is not None and changed(self._kept[role], known.get(role, {})):
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
    """Whether a curve has changed: it has other sizes, or the cost of a size has changed relative to the others.

    A size is missing only if the loop has forgotten it, because a loop knows all sizes that were restored.

    A factor that all sizes share does not count as a change. A hot processor or other programs change this factor from
    hour to hour, and a loop learns it from its own first batches anyway: only the shape of a curve is worth keeping.
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
    # By class, because a class may be known by another size now. All sizes of a class cost about as much per token.
    return {size_class(n): seconds / n for n, seconds in thinned(costs).items()}


class KeptCurves:
    """All curves T(n) that were measured on this processor, whatever the settings. The models need not be loaded."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Any, ...], tuple[float, dict[int, float]]] = {}
        try:
            files = [Path(path) for path in files_in(costs_dir(), ".json")]
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
                continue  # a file with invalid content counts as missing

    def of(self, path: str, role: str) -> dict[int, float]:
        """The newest curve of a model's file; empty if none is known.

        Args:
            path: a model or a head.
            role: ``"target"``, ``"head"`` or ``"draft"``.
        """
        return self._newest.get((os.path.basename(path), _size(path), role), (0.0, {}))[1]

    def plain_speed(self, target: str) -> float | None:
        """Tokens a second of plain decoding by a model, without the time of prompts; None if T(1) is not known."""
        curve = self.of(target, "target")
        return 1 / min(curve.values()) if 1 in curve else None

    def expected(self, survey: Survey) -> dict[str, Expected]:
        """The expected speedup and costs of each draft that a survey has found for a model, by ``draft_model``."""
        target, found = self.of(survey.path, "target"), {}
        for draft in survey.found:
            file = survey.path if draft.draft_model == "mtp" else draft.draft_model
            of_draft = self.of(file, "draft" if draft.kind in ("model", "foreign") else "head")
            found[draft.draft_model] = expected(draft.cost, draft.acceptance, target, of_draft)
        return found
