"""llama-server's samplers, as fields of a request or as options of a plug-in."""

from __future__ import annotations

from pydantic import BaseModel, Field


class SamplerFields(BaseModel):
    """llama-server's samplers, under its names. Defaults: `specllama.samplers.Samplers`."""

    dry_multiplier: float | None = Field(None, description="DRY, against repetitions; 0 is off.")
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = Field(None, description="Tokens that DRY sees; -1: prompt and text as a whole.")
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: float | None = Field(None, description="Exclude top choices; 0 is off.")
    xtc_threshold: float | None = None
    top_n_sigma: float | None = Field(None, description="Standard deviations below the largest logit; 0 is off.")
    dynatemp_range: float | None = Field(None, description="Dynamic temperature; 0 is off.")
    dynatemp_exponent: float | None = None
