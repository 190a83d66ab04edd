"""What a job may record: the texts of its journal, its live texts and its signals, checked before they are
sent.

The server could refuse them as well, but its refusal would concern other jobs of the same call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eventbus.errors import UsageError
from eventbus.model.names import shown

__all__ = ["check_append", "check_signal_id", "check_text"]

_LONGEST_NAME = 256
_ENTRY = "an entry or a live text"
_MOST_BYTES = 16 << 20  # of one append: the server holds up all others while it takes them


def check_append(entries: Sequence[str], live: Mapping[str, str], taken: Sequence[str], *, most: int) -> None:
    """Refuse what the server could not record, because its refusal would concern other jobs, too."""
    if isinstance(entries, str) or isinstance(taken, str):
        raise UsageError("entries and taken are lists of texts; put the one text into a list")
    if len(entries) == 1 and not live and not taken:  # by far the most
        check_text(entries[0], _ENTRY, most=most)
        return
    for given, limit, what in (
        (entries, 2000, "entries"),
        (live, 100, "live texts"),
        (taken, 1000, "signals"),
    ):
        if len(given) > limit:
            raise UsageError(f"{len(given)} {what} in one append; at most {limit} are possible")
    size = sum(check_text(text, _ENTRY, most=most) for text in (*entries, *live.values()))
    if size > max(most, _MOST_BYTES):
        raise UsageError(
            f"{size} bytes in one append; at most {max(most, _MOST_BYTES)} are possible, "
            "so use several appends"
        )
    for text in (*live, *taken):
        check_text(text, "the name of a live text or the id of a signal", most=_LONGEST_NAME)
    if any(each.startswith("#") for each in taken):
        raise UsageError("no id of a signal begins with a #")


def check_signal_id(signal: str, name: str) -> None:
    """Refuse the id of a signal that no entry could take: the job that it came to would fail of it.

    The ids of triggers, whose name begins with `!`, are remembered as words.
    """
    check_text(signal, "the id of a signal", most=_LONGEST_NAME)
    if signal.startswith("#"):
        raise UsageError(f"{shown(signal)} is no id of a signal: it must not begin with a #")
    if name.startswith("!") and any(each.isspace() for each in signal):
        raise UsageError(f"{shown(signal)} is no id of a trigger: it must not have spaces")


def check_text(text: object, what: str, *, most: int) -> int:
    """Return the size of a text in bytes; refuse one that the server could not keep."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is text; this is {type(text).__name__}: {shown(repr(text))}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} cannot be written as UTF-8: {error}") from None
    if size > most:
        raise UsageError(f"{what} has {size} bytes; at most {most} are possible")
    return size
