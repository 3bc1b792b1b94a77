"""llama-server's samplers, as fields of a request or as options of a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, create_model

from specllama import _core

if TYPE_CHECKING:
    SamplerFields = BaseModel
else:
    SamplerFields = create_model(
        "SamplerFields",
        __module__=__name__,
        __doc__="llama-server's samplers, under its names. Defaults: `specllama.engine.samplers.DEFAULTS`.",
        **{
            sampler.name: (type(sampler.default) | None, Field(None, description=sampler.summary))
            for sampler in _core.server_samplers()
        },
        dry_sequence_breakers=(list[str] | None, None),
    )
