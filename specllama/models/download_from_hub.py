"""Model files from the Hugging Face hub."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from .catalog import HubSource
from .transfer import SourceError

_REACH_SECONDS = 5.0


def fetch_from_hub(source: HubSource, destination: Path, size: int) -> None:
    """Download a hub file, from where an interrupted call has left `destination`.

    The hub's own library fetches it and draws a progress bar, on stderr; not its `hf_hub_download`, which begins anew
    after an interruption (as of release 2.4).

    Args:
        source: which file.
        destination: grows to the whole file; a temporary name of the caller's.
        size: bytes of the whole file.

    Raises:
        SourceError: offline mode, no connection, or no such file; one line says which.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
    except ImportError as error:
        raise SourceError(f"huggingface_hub cannot be imported ({error})") from error
    if constants.HF_HUB_OFFLINE:
        raise SourceError("not asked, because HF_HUB_OFFLINE is set")
    url = huggingface_hub.hf_hub_url(source.repo, source.file, revision=source.revision)
    _require_reachable(url)
    try:
        with destination.open("ab") as file:
            if file.tell() > size:
                file.seek(0)
                file.truncate()
            if file.tell() < size:  # else it was interrupted before its hash was known
                headers = build_hf_headers()
                http_get(url, file, resume_size=file.tell(), headers=headers, displayed_filename=source.file)
    except Exception as error:  # The hub's library raises its transport's errors too, which differ by version.
        raise SourceError(_first_line(error)) from error


def _require_reachable(url: str) -> None:
    """Give up on a hub that cannot be reached, at once: its own library retries for half a minute."""
    try:
        request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "specllama"})
        with urllib.request.urlopen(request, timeout=_REACH_SECONDS):
            pass
    except urllib.error.HTTPError:
        pass  # It answered. What the answer means is for the hub's library to say.
    except urllib.error.URLError as error:
        if not isinstance(error.reason, OSError) or _is_certificate_error(error.reason):
            return
        raise SourceError(f"cannot be reached ({error.reason})") from error
    except (TimeoutError, ConnectionError) as error:
        raise SourceError(f"cannot be reached ({error})") from error


def _is_certificate_error(reason: OSError) -> bool:
    # The hub's library may trust other certificates than urllib does: let it try.
    import ssl

    return isinstance(reason, ssl.SSLError)


def _first_line(error: BaseException) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = str(cause).strip().splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"
