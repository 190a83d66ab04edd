"""Histograms: which bucket a duration falls into, percentiles, sums; and the setting that says how long they
are kept.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from eventbus.errors import DefinitionError
from eventbus.model.histogram import LAST_BUCKET, Histogram, bucket_of
from eventbus.model.windows import Windows, read_windows


def _count(*durations: int) -> Histogram:
    counts: dict[int, int] = {}
    for each in durations:
        counts[bucket_of(each)] = counts.get(bucket_of(each), 0) + 1
    return Histogram(counts)


def test_each_duration_is_at_most_a_quarter_away_from_what_its_bucket_says() -> None:
    for ms in [*range(1, 5000), *(int(1.1**n) for n in range(90, 167))]:
        told = _count(ms).percentile(50)
        assert told is not None
        assert abs(told * 1000 - ms) <= 0.25 * ms, ms


def test_buckets_rise_with_the_duration_and_the_last_one_takes_all_the_rest() -> None:
    buckets = [bucket_of(ms) for ms in range(20_000)]
    assert buckets == sorted(buckets)
    assert set(buckets) == set(range(max(buckets) + 1))
    assert bucket_of(2**23) == bucket_of(2**40) == LAST_BUCKET
    assert bucket_of(2**23 - 1) == LAST_BUCKET - 1
    assert bucket_of(-5) == 0


def test_percentiles_of_known_durations_are_within_a_quarter() -> None:
    durations = random.Random(7).choices(range(1, 60_000), k=600)
    found, ordered = _count(*durations), sorted(durations)
    for percent in (50, 95, 99):
        told, true = found.percentile(percent), ordered[round(6 * percent) - 1]
        assert told is not None
        assert abs(told * 1000 - true) <= 0.25 * true
    assert (found.p50, found.p95, found.p99) == tuple(map(found.percentile, (50, 95, 99)))


def test_a_histogram_of_nothing_has_no_percentile() -> None:
    assert (Histogram().count, Histogram().p50) == (0, None)
    with pytest.raises(ValueError, match="from 0 to 100, got: 101"):
        Histogram().percentile(101)


def test_the_total_of_histograms_has_all_durations() -> None:
    parts = [_count(1, 5, 900), _count(5, 7), Histogram()]
    assert Histogram.total(parts) == _count(1, 5, 900, 5, 7)
    assert _count(0).percentile(0) == 0


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("48h,90d", Windows()),
        ("1 hour, 2 days", Windows(3600.0, 172_800.0)),
        ((3600, "366d"), Windows(3600.0, 366 * 86_400.0)),
        ("none", None),
        (" None ", None),
        (None, None),
        (Windows(3600.0, 3600.0), Windows(3600.0, 3600.0)),
    ],
)
def test_the_setting_says_how_long_minutes_and_hours_are_kept(given: Any, read: Windows | None) -> None:
    assert read_windows("history", given) == read


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("48h", 'expected history to be how long it is kept by minute and by hour, such as "48h,90d"'),
        (5, "expected history to be how long it is kept"),
        ("30m,90d", "expected history to keep minutes for 1 hour to 7 days"),
        ("8d,90d", "expected history to keep minutes for 1 hour to 7 days"),
        ("48h,1h", "at least as long as minutes and at most 366 days"),
        ("48h,2y", "expected history to be seconds"),
        ("48h,400d", "at least as long as minutes and at most 366 days"),
    ],
)
def test_a_window_out_of_range_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        read_windows("history", given)


def test_windows_are_shown_as_they_are_given() -> None:
    assert str(Windows()) == "48h,90d"
