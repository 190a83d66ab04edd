"""Check the site that `tox -e docs` has built: what zensical's strict mode does not see.

Every public name has its place in the API reference, and nothing else has one. Every link within the site,
also one to something that is no page, leads somewhere. Every page is in
the navigation, and none loads anything from another host.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

_PUBLIC = (
    "eventbus",
    "eventbus.dashboard",
    "eventbus.lowlevel",
    "eventbus.testing",
    "workflows",
    "workflows.testing",
)
_LOADS = {
    ("audio", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("link", "href"),
    ("script", "src"),
    ("source", "src"),
    ("video", "src"),
}


class _Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif (tag, name) in _LOADS and value:
                self.loads.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


def _documented(site: Path) -> dict[str, str]:
    """Map each name in the inventory to its kind.

    The format is that of Sphinx: four lines, then lines that are compressed. Each of these has a name, its
    kind and a priority; names of priority 2 are other names of the same object.
    """
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    entries = (line.split(" ", 3) for line in lines.splitlines())
    return {name: kind for name, kind, priority, _ in entries if priority == "1"}


def _wrong_names(documented: dict[str, str]) -> Iterator[str]:
    offered = {f"{module}.{name}" for module in _PUBLIC for name in import_module(module).__all__}
    for name in sorted(offered - documented.keys()):
        yield f"{name} is public and not in the API reference; add it to its page in docs/reference"
    for name in sorted(offered & documented.keys()):
        if documented[name] == "py:module" and not _is_module(name):
            yield f"{name} in the API reference is a module that hides the object of the same name"
    shown = {name for name in documented if name.rpartition(".")[0] in _PUBLIC}
    for name in sorted(shown - offered - {*_PUBLIC}):
        yield f"{name} is in the API reference and not public"


def _is_module(name: str) -> bool:
    """Tell whether a public name is itself a module, such as `eventbus.lowlevel.clock`."""
    module, _, offered = name.rpartition(".")
    return isinstance(getattr(import_module(module), offered), ModuleType)


def _file(target: str, path: Path, site: Path) -> Path | None:
    """Find the file that a link on a page means; None for a link to another host."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return path
    folder = site if parts.path.startswith("/") else path.parent
    return (folder / unquote(parts.path).lstrip("/")).resolve()


def _wrong_links(site: Path) -> Iterator[str]:
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{where} loads {target}"
        for target in [*page.links, *page.loads]:
            found, anchor = _file(target, path, site), unquote(urlsplit(target).fragment)
            if found is None:
                continue
            if not (found.is_relative_to(site) and found.is_file()):
                yield f"{where} links to {target}, which is not in the site"
            elif anchor and found in pages and anchor not in pages[found].anchors:
                yield f"{where} links to {target}, and that page has no such anchor"
    first = site / "index.html"
    listed = {_file(target, first, site) for target in pages[first].links}
    for path in sorted(pages.keys() - listed - {site / "404.html"}):
        yield f"{path.relative_to(site)} is not in the navigation; give it a place in zensical.toml"


def main(site: Path) -> None:
    """End with a message for each fault, and with status 1, if there is one."""
    faults = [*_wrong_names(_documented(site)), *_wrong_links(site)]
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
