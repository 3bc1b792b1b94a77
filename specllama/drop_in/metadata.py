"""A file's metadata, of which ``llama_cpp.Llama`` loses the last byte of a text of 1024."""

from __future__ import annotations

from specllama.engine.opening import metadata_of


class Metadata:
    """Reads the metadata anew where ``llama_cpp.Llama`` keeps its own: in its constructor, before it looks at them."""

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says in numbers and texts, as texts."""
        found: dict[str, str] = self.__dict__["_metadata"]
        return found

    @metadata.setter
    def metadata(self, found: dict[str, str]) -> None:
        is_first = "_metadata" not in self.__dict__
        self.__dict__["_metadata"] = metadata_of(self.__dict__["_model"].model) if is_first else found
