"""The static files: scripts, style and icon, each with its digest in the name, so that browsers may keep it
for ever.

All of them lie in this package; no page loads anything from another host.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.responses import Response

from eventbus.dashboard.problem import Problem

_FOLDER = Path(__file__).parent.parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Assets:
    """Knows the static files by the names that pages use, and by those that browsers ask for."""

    def __init__(self) -> None:
        self._by_url: dict[str, tuple[bytes, str]] = {}
        self._urls: dict[str, str] = {}
        for path in sorted(_FOLDER.rglob("*")):
            if path.suffix in _TYPES:
                content = path.read_bytes()
                url = f"{path.stem}.{hashlib.sha256(content).hexdigest()[:12]}{path.suffix}"
                self._by_url[url] = (content, _TYPES[path.suffix])
                self._urls[path.name] = url

    def url(self, name: str) -> str:
        """Return the last part of the URL of a file."""
        return self._urls[name]

    def answer(self, url: str) -> Response:
        """Return a file. Raises Problem, 404."""
        if url not in self._by_url:
            raise Problem(404, "there is no such file")
        content, media = self._by_url[url]
        return Response(
            content, headers={"cache-control": "public, max-age=31536000, immutable"}, media_type=media
        )
