"""Model files: the catalog, downloads, other sizes, and the checks before llama.cpp opens a file.

The names exported here are for the commands, the training and the evidence tools. All other names are for the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

if TYPE_CHECKING:
    from .cache_types import CACHE_TYPES, values_of_block
    from .catalog import FILE_TYPES, Model, models_dir, resolve
    from .catalog import catalog as known_models
    from .contents import planned
    from .download import pull_draft, pull_model
    from .eagle3_file import Eagle3File
    from .families import KnownDraft
    from .found_drafts import FoundDraft, Survey, survey
    from .gguf_values import StoredTensor, architecture_of, parts_of, read_whole_header, stored, text_in, tokens_in
    from .head_kinds import EAGLE3, HYDRA, MASK_TOKEN, OF_A_SMALL_MODEL, OF_THE_FINAL_STATE, PARALLEL, SIBLING, TRAINED
    from .header_checks import largest, trained_context, whole_number
    from .heads import head_beside, read_head
    from .hub import HubName, all_on_disk, on_disk
    from .model_folders import size_of
    from .new_file import HEADER_ROOM, make_folder, require_free_place, require_room
    from .quantize import check_model, default_output, what_stays_lost
    from .quantize import quantize as write_quantized
    from .state_head_file import ARCHITECTURES, vocabulary_hash
    from .weights_digest import Digest

__all__ = ["FILE_TYPES", "Model", "known_models", "models_dir", "resolve"]
__all__ += ["HubName", "all_on_disk", "on_disk", "pull_draft", "pull_model"]
__all__ += ["FoundDraft", "KnownDraft", "Survey", "survey"]
__all__ += ["HEADER_ROOM", "make_folder", "require_free_place", "require_room", "size_of"]
__all__ += ["check_model", "default_output", "planned", "what_stays_lost", "write_quantized"]
__all__ += ["ARCHITECTURES", "EAGLE3", "HYDRA", "MASK_TOKEN", "OF_A_SMALL_MODEL", "OF_THE_FINAL_STATE"]
__all__ += ["PARALLEL", "SIBLING", "TRAINED", "Eagle3File", "head_beside", "read_head"]
__all__ += ["CACHE_TYPES", "Digest", "StoredTensor", "architecture_of", "largest", "parts_of", "read_whole_header"]
__all__ += ["stored", "text_in", "tokens_in", "trained_context", "values_of_block", "vocabulary_hash", "whole_number"]

_EXPORTS = {
    "cache_types": ("CACHE_TYPES", "values_of_block"),
    "catalog": ("FILE_TYPES", "Model", "models_dir", "resolve"),
    "contents": ("planned",),
    "download": ("pull_draft", "pull_model"),
    "eagle3_file": ("Eagle3File",),
    "families": ("KnownDraft",),
    "found_drafts": ("FoundDraft", "Survey", "survey"),
    "gguf_values": (
        *("StoredTensor", "architecture_of", "parts_of", "read_whole_header"),
        *("stored", "text_in", "tokens_in"),
    ),
    "head_kinds": (
        "EAGLE3",
        "HYDRA",
        "MASK_TOKEN",
        "OF_A_SMALL_MODEL",
        "OF_THE_FINAL_STATE",
        "PARALLEL",
        "SIBLING",
        "TRAINED",
    ),
    "header_checks": ("largest", "trained_context", "whole_number"),
    "heads": ("head_beside", "read_head"),
    "hub": ("HubName", "all_on_disk", "on_disk"),
    "model_folders": ("size_of",),
    "new_file": ("HEADER_ROOM", "make_folder", "require_free_place", "require_room"),
    "quantize": ("check_model", "default_output", "what_stays_lost"),
    "state_head_file": ("ARCHITECTURES", "vocabulary_hash"),
    "weights_digest": ("Digest",),
}
# A package cannot export a module and a function of the same name, so these functions have other names here.
_RENAMED = {"known_models": ("catalog", "catalog"), "write_quantized": ("quantize", "quantize")}
__getattr__ = opened(__name__, _EXPORTS, _RENAMED)
