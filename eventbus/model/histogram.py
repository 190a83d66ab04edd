"""Histograms of durations: log2 buckets with one more bit, so that a bucket is no wider than half of where it
begins.

    milliseconds  0  1  2  3  4-5  6-7  8-11  12-15  16-23 …  8,388,608 or more: 2.3 hours
    bucket        0  1  2  3  4    5    6     7      8     …  46

What must always hold: a duration is at most 25 % away from the middle of its bucket, except in the first one
and the last one; histograms of other times, queues and workers are added bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LAST_BUCKET = 46


def bucket_of(ms: int) -> int:
    """Return the bucket of a duration in ms; of a negative one that of 0."""
    if ms < 2:
        return max(ms, 0)
    bits = ms.bit_length()
    return min(2 * bits - 2 + (ms >> bits - 2 & 1), LAST_BUCKET)


def _bounds(bucket: int) -> tuple[int, int]:
    """Return the first and the last ms of a bucket."""
    if bucket < 2:
        return bucket, bucket
    width = 1 << bucket // 2 - 1
    first = (2 + bucket % 2) * width
    return first, first + width - 1


class Histogram(msgspec.Struct, frozen=True):
    """How many durations fell into which bucket. `counts` has no empty bucket; `percentile` reads it."""

    counts: dict[int, int] = {}

    @property
    def count(self) -> int:
        """How many durations it has."""
        return sum(self.counts.values())

    def percentile(self, percent: float) -> float | None:
        """Return the duration, in seconds, that so many percent of all do not exceed; None without any.

        It is at most 25 % off, from 1 ms to 2 hours. What took less than 1 ms counts as 0. Raises ValueError
        for a percentage that is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"expected percent to be from 0 to 100, got: {percent}")
        left = max(1.0, self.count * percent / 100)
        for bucket, count in sorted(self.counts.items()):
            left -= count
            if left <= 1e-9:
                first, last = _bounds(bucket)
                return (first + last) / 2000
        return None

    @property
    def p50(self) -> float | None:
        """The median in seconds; None without any."""
        return self.percentile(50)

    @property
    def p95(self) -> float | None:
        """What 95 % do not exceed, in seconds; None without any."""
        return self.percentile(95)

    @property
    def p99(self) -> float | None:
        """What 99 % do not exceed, in seconds; None without any."""
        return self.percentile(99)

    @classmethod
    def total(cls, parts: Iterable[Histogram]) -> Histogram:
        """Return the histogram of all durations of these."""
        counts: dict[int, int] = {}
        for part in parts:
            for bucket, count in part.counts.items():
                counts[bucket] = counts.get(bucket, 0) + count
        return cls(counts)
