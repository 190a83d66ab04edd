"""The revision of a job: what an editor has seen of it, without its payload.

It is made of the last edit, the due time and the attempts, in plain text, so that one revision can say what
another one has changed. It holds no digest of the payload, by which a short secret in it could be found.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["differences_of", "revision_of"]

_PARTS = (
    "its payload, delay or priority was edited",
    "its due time is another one",
    "it was attempted",
)


def revision_of(fields: Mapping[str, str]) -> str:
    """Return the revision of a job's record."""
    return ".".join(fields.get(name) or "0" for name in ("edited", "due", "attempts"))


def differences_of(seen: str, now: str) -> list[str]:
    """Return what has changed between two revisions, as sentences; empty if they are the same."""
    if seen == now:
        return []
    old, new = seen.split("."), now.split(".")
    if len(old) != len(new):
        return [f"{seen[:64]!r} is no revision of it"]
    return [said for said, one, other in zip(_PARTS, old, new, strict=True) if one != other]
