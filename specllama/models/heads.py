"""Which files are heads: the table of the forms of their files, and the search for a head beside a model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from .assistant_file import AssistantFile
from .block_head_file import BlockHeadFile
from .eagle3_file import Eagle3File
from .gguf_values import StoredTensor, UnusableFileError, architecture_of, cached, read_whole_header
from .head_file import HeadFile
from .head_kinds import EAGLE3, HEADS, OURS
from .mtp_file import MtpFile
from .state_head_file import StateHeadFile

FORMS: tuple[type[HeadFile], ...] = (
    BlockHeadFile,
    StateHeadFile,
    Eagle3File,
    MtpFile,
    AssistantFile,
)
"""All forms that the file of a head can have: a line for each."""
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")  # in the name of a model that is split into several files


@cached
def read_head(path: str) -> HeadFile | None:
    """Read the description of a head.

    Returns:
        None if the file is a model, or no whole GGUF file. Loading a damaged file will report what is wrong.

    Raises:
        UnusableFileError: the file is a head of a kind that cannot be used, or its description is incomplete.
    """
    try:
        values, tensors = read_whole_header(path)
    except (UnusableFileError, OSError):
        return None
    form = next((form for form in FORMS if form.is_of(values, tensors)), None)
    return None if form is None else form.read(path, values, tensors)


def is_head(values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether a file is a head, and so no model by itself."""
    return any(form.is_of(values, tensors) for form in FORMS)


def kind_of_head(path: str, values: Mapping[str, Any]) -> str | None:
    """The kind of head, from a file's metadata or else from its name; None if it is an ordinary model."""
    kind, name = architecture_of(values).removeprefix(OURS), os.path.basename(path).lower()
    return kind if kind in HEADS else next((one for one in HEADS if name.startswith(f"{one}-")), None)


def head_beside(target: str, kind: str = EAGLE3) -> str:
    """The path that a head has beside a model's file.

    Args:
        target: the model's file.
        kind: one of `HEADS`, or of the other kinds that ``train-draft`` can make.
    """
    folder, name = os.path.split(target)
    return os.path.join(folder, f"{kind}-{_PART.sub('', name)}")


def head_of(target: str) -> str | None:
    """The path of the head beside a model's file, or the name of the layers in the model's file that draft.

    Returns:
        None if there is neither.
    """
    for path in (head_beside(target, kind) for kind in HEADS):
        if os.path.isfile(path):
            return path
    for form in FORMS:
        if form.in_model is not None:
            try:
                form.num_in_model(target)
            except UnusableFileError:
                continue
            return form.in_model
    return None
