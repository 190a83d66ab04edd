"""Time zones by their names, and the offset of a zone at a point in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from eventbus.errors import DefinitionError
from eventbus.model.names import shown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@lru_cache(maxsize=256)
def find_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name, such as `"Europe/Berlin"`. Raises DefinitionError for any
    other.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        raise DefinitionError(
            'expected tz to be the IANA name of a time zone, such as "Europe/Berlin" or "UTC", '
            f"got: {shown(name)}"
        ) from None


def to_local(ms: int, zone: ZoneInfo) -> datetime:
    """Return the wall time of a point in time, Unix ms, in a zone."""
    return (EPOCH + timedelta(milliseconds=ms)).astimezone(zone)


def to_ms(when: datetime) -> int:
    """Return the point in time of an aware datetime, Unix ms.

    Two datetimes of one zone that differ in `fold` alone compare equal, and their difference is that of the
    wall times. So the difference is made in UTC.
    """
    return (when.astimezone(UTC) - EPOCH) // _MS


def offset_at(ms: int, zone: ZoneInfo) -> timedelta:
    """Return how far the wall time of a zone is ahead of UTC at a point in time, Unix ms."""
    offset = to_local(ms, zone).utcoffset()
    return timedelta(0) if offset is None else offset
