"""What a user may say of learning from use, and how an engine begins to keep what a head can learn."""

from __future__ import annotations

import dataclasses
from typing import Any

from specllama.backend.brief import brief

from .account import Account
from .examples.store import ExampleStore, learn_dir
from .hidden import FINAL, FINAL_STATE, Hidden, shown_layers
from .model import Model
from .options import checked_gib

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Learning:
    """Whether an engine keeps what a head can learn from its texts.

    Attributes:
        learn: whether it does.
        learn_disk: how many GiB all texts of the model may take.
    """

    learn: bool = False
    learn_disk: float = 4.0

    @classmethod
    def checked(cls, learn: Any, learn_disk: Any) -> Learning:
        """Check a user's values.

        Raises:
            TypeError: a value has another type.
            ValueError: a value is out of range.
        """
        return cls(checked_learn(learn), checked_gib("learn_disk", learn_disk, "of kept texts"))

    def shown(self, hidden: Hidden | None) -> Hidden | None:
        """The states that the target shows: those of the draft, or the final one for learning.

        Args:
            hidden: the states that the draft has the target show; None for none.

        Raises:
            ValueError: the draft has it show other states.
        """
        if not self.learn or (hidden is not None and hidden.names == (FINAL_STATE,)):
            return hidden
        if hidden is None:
            return shown_layers([FINAL])
        raise ValueError(
            "learn=True keeps the target's final state, and this head has the target show other states: leave out "
            "learn, or give another draft, such as a model, a Hydra or Medusa head, or lookup"
        )

    def begin(self, account: Account, model: Model) -> None:
        """Have an engine keep texts from now on, if the user has asked for it.

        Raises:
            ValueError: the target is not what its file says, so that a head for the file would learn what is wrong.
        """
        if not self.learn:
            return
        settings = model.settings
        if settings.lora is not None or settings.overrides or settings.weights is None:
            raise ValueError(
                "learn=True is for a model as its file has it: leave out lora_path and kv_overrides, or learn"
            )
        folder = learn_dir(settings.weights.digest())
        account.examples = ExampleStore(folder, int(self.learn_disk * _GIB), account.warn_once)


def checked_learn(value: Any) -> bool:
    """Check ``learn``.

    Raises:
        TypeError: neither True nor False.
    """
    if not isinstance(value, bool):
        raise TypeError(f"learn={brief(value)} must be True or False: whether what a draft can learn is kept")
    return value
