"""Links: the URLs of the dashboard, below the place where it is mounted.

A name is one part of a path, whatever it holds. Proxies and browsers change `%2F` and `..` on the way, so
these are written with an exclamation mark, as JSON pointers do with a tilde, which ids of flows have: `!0`
for `!`, `!1` for `/`, and `!2` for a dot that stands first.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlencode


def part_of(name: str) -> str:
    """Return a name as one part of a path."""
    text = name.replace("!", "!0").replace("/", "!1")
    if text.startswith("."):
        text = f"!2{text[1:]}"
    return quote(text.encode("utf-8", "surrogatepass"), safe="~@:!")


def text_of(part: str) -> str:
    """Return the name that a part of a path, already unquoted, stands for."""
    if part.startswith("!2"):
        part = f".{part[2:]}"
    return part.replace("!1", "/").replace("!0", "!")


class Links:
    """The URLs of one request: absolute paths, so that they hold behind any proxy."""

    def __init__(self, base: str) -> None:
        self.base: str = base.rstrip("/")

    def __call__(self, /, *parts: str, **query: str | int | Sequence[str] | None) -> str:
        """Return the URL of a page: `links("queues", name, state="failed")`. A query of None is left out;
        a list is repeated.
        """
        path = "/".join(["", *map(part_of, parts)]) if parts else "/"
        given = {name: value for name, value in query.items() if value is not None and value != ""}
        return f"{self.base}{path}" + (f"?{urlencode(given, doseq=True, errors='replace')}" if given else "")

    def next_after_sign_in(self, given: str) -> str:
        """Return the page that was asked for before the sign-in, if it is one of ours, else the first one."""
        is_ours = given.startswith(f"{self.base}/") and not given.startswith("//") and "\\" not in given
        return quote(given, safe="/?&=%~@:!+,;") if is_ours and given.isprintable() else self()
