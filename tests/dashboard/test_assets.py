"""The static files: those of others are as their packages have them, and none is loaded from another host."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import eventbus.dashboard

_STATIC = Path(eventbus.dashboard.__file__).parent / "static"


def test_vendored_files_are_those_of_their_packages() -> None:
    described = tomllib.loads((_STATIC / "vendor" / "vendor.toml").read_text())
    scripts = {path.name: path for path in (_STATIC / "vendor").glob("*.js")}
    assert described.keys() == scripts.keys()
    for name, path in scripts.items():
        assert hashlib.sha384(path.read_bytes()).hexdigest() == described[name]["sha384"], name
        assert described[name]["version"]
        assert described[name]["licence"] == ("MIT" if name.startswith("dagre") else "0BSD")
    assert "Zero-Clause BSD" in (_STATIC / "vendor" / "LICENSE-htmx.txt").read_text()
    assert "Permission is hereby granted" in (_STATIC / "vendor" / "LICENSE-dagre.txt").read_text()


def test_check_3_no_page_loads_anything_from_another_host() -> None:
    templates = (_STATIC.parent / "templates").glob("*.html")
    for path in [*templates, *_STATIC.glob("*.css"), *_STATIC.glob("*.js")]:
        text = path.read_text()
        assert not re.search(
            r"(https?:)?//[a-z0-9]|@import|url\(",
            text.replace("http://www.w3.org", "").replace("url(#tip)", ""),
        ), path
        for url in re.findall(r'(?:src|href|action)="([^"]+)"', text):
            assert url.startswith(("{{ links(", "{{ url", "{{ own }}", "#")), (path, url)


def test_what_a_browser_loads_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in _STATIC.rglob("*") if path.suffix in (".js", ".css")}
    assert sizes.pop("dagre.min.js") < 50_000, "which only the page of a flow loads, in a worker"
    assert sum(sizes.values()) < 60_000, sizes
