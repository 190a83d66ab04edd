"""What a server says of itself."""

from __future__ import annotations

__all__ = ["parse_info"]


def parse_info(text: str) -> dict[str, str]:
    """Return the facts of an answer to INFO, by their names."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}
