"""The page at /, with its scripts and the markdown library included."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

_INCLUDED = re.compile(r"/\* (\S+\.js) \*/")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.S)


def page_and_policy() -> tuple[str, str]:
    """The page, and its Content-Security-Policy.

    The policy names the script and the style by their hashes. So the browser runs and applies nothing else, whatever an
    answer contains, and it contacts no other server.
    """
    files = resources.files(__package__)
    page = _INCLUDED.sub(
        lambda name: files.joinpath(*name[1].split("/")).read_text(encoding="utf-8"),
        files.joinpath("page.html").read_text(encoding="utf-8"),
    )
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
        allowed[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
        f"img-src data:; style-src {' '.join(allowed['style'])}; script-src {' '.join(allowed['script'])}"
    )
    return page, policy
