"""llama-server's samplers, as fields of a request or as options of a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, create_model

from specllama.engine import CHAIN, LARGEST_INT, server_samplers

_BOUNDS: dict[str, dict[str, float]] = {
    "top_k": {"ge": -1, "le": LARGEST_INT},
    **{name: {"ge": 0.0, "le": 1.0} for name in ("top_p", "min_p", "typical_p")},
    "repeat_penalty": {"ge": 0.0},
    **{name: {"ge": -2.0, "le": 2.0} for name in ("frequency_penalty", "presence_penalty")},
}
_DESCRIPTIONS = {
    "temperature": "0 is greedy. Default 0.8, in chats 0.2, as those of Llama's methods.",
    "top_k": "How many tokens may be chosen from; 0 or -1: all.",
    "typical_p": "Locally typical sampling; 1 is off.",
}

if TYPE_CHECKING:
    SamplerFields = BaseModel

    class ChainFields(BaseModel):
        """For type checkers: the class below has more fields."""

        repeat_last_n: int | None
else:
    ChainFields = create_model(
        "ChainFields",
        __module__=__name__,
        __doc__="The other numbers of the sampler chain. What a request leaves out is left to the method of the Llama.",
        **{
            name: (
                type(default) | None,
                Field(None, description=_DESCRIPTIONS.get(name, f"Default {default}."), **_BOUNDS.get(name, {})),
            )
            for name, default in CHAIN.items()
            if name != "penalty_last_n"
        },
        repeat_last_n=(
            int | None,
            Field(
                None, ge=-1, le=LARGEST_INT, description="The number of last tokens that the penalties see. -1: all."
            ),
        ),
        mirostat_mode=(int | None, Field(None, ge=0, le=2, description="The version of Mirostat, 1 or 2. 0: off.")),
        mirostat_tau=(
            float | None,
            Field(None, ge=0.0, le=10.0, description="The target entropy of Mirostat. Default 5.0."),
        ),
        mirostat_eta=(
            float | None,
            Field(None, ge=0.001, le=1.0, description="The learning rate of Mirostat. Default 0.1."),
        ),
    )
    SamplerFields = create_model(
        "SamplerFields",
        __module__=__name__,
        __doc__="llama-server's samplers, under its names. Defaults: `specllama.engine.samplers.DEFAULTS`.",
        **{
            sampler.name: (type(sampler.default) | None, Field(None, description=sampler.summary))
            for sampler in server_samplers()
        },
        dry_sequence_breakers=(list[str] | None, None),
    )
