"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping

_SAVES = (("aof_last_write_status", "write of its append-only file"), ("rdb_last_bgsave_status", "snapshot"))


def parse_info(text: str) -> dict[str, str]:
    """Return the facts of an answer to INFO, by their names."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}


def failed_saves(facts: Mapping[str, str]) -> list[str]:
    """Return which of its last saves failed, such as `the last snapshot failed`."""
    return [f"the last {what} failed" for name, what in _SAVES if facts.get(name, "ok") != "ok"]
