"""What a job may record: the texts of its journal, its live texts and its signals, checked before they are
sent.

The server could refuse them as well, but its refusal would concern other jobs of the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eventbus.errors import UsageError
from eventbus.model.names import shown

_LONGEST_NAME = 256
_MOST_BYTES = 16 << 20  # of one append: the server holds up all others while it takes them


def check_append(entries: Sequence[str], live: Mapping[str, str], taken: Sequence[str], *, most: int) -> None:
    """Refuse what the server could not record, because its refusal would concern other jobs, too."""
    _check_count(entries, 2000, "entries")
    _check_texts(entries, live, most)
    if live:
        _check_count(live, 100, "live texts")
        _check_names(live)
    if taken:
        _check_count(taken, 1000, "signals")
        _check_names(taken)
        for signal in taken:
            if signal.startswith("#"):
                raise UsageError("no id of a signal begins with a #")


def _check_count(given: Sequence[str] | Mapping[str, str], most: int, what: str) -> None:
    if isinstance(given, str):
        raise UsageError(f"{what} are a list of texts; put the one text into a list")
    if len(given) > most:
        raise UsageError(f"{len(given)} {what} in one append; at most {most} are possible")


def _check_texts(entries: Sequence[str], live: Mapping[str, str], most: int) -> None:
    size = 0
    for text in (*entries, *live.values()):
        size += check_text(text, "an entry or a live text", most=most)
    if size > max(most, _MOST_BYTES):
        raise UsageError(
            f"{size} bytes in one append; at most {max(most, _MOST_BYTES)} are possible, "
            "so use several appends"
        )


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        check_text(name, "the name of a live text or the id of a signal", most=_LONGEST_NAME)


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
