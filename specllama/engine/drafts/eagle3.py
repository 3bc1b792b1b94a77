"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840)."""

from __future__ import annotations

from specllama.engine.hidden import Hidden
from specllama.engine.model import Model
from specllama.models.eagle3_file import Eagle3File

from .head import DecodingHead

# Tensors of llama.cpp's graph: the state of the head itself, and the output of its encoder.
_STATES = ("eagle3_prenorm-0", "fc_out")


class Eagle3InFile(DecodingHead[Eagle3File]):
    """The kind of draft that is an EAGLE-3 head."""

    form = Eagle3File

    def hidden(self, target: Model) -> Hidden:
        """See the base class."""
        return Hidden(_STATES, len(self.file.layers) * self.file.hidden_size, encodes=True, target=target.context)
