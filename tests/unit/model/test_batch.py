"""Batches as values: what is refused, and what the error says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eventbus import Batch, DefinitionError


@pytest.mark.parametrize("size", [0, -1, 1001, 1.5, "10", None, True])
def test_a_size_that_cannot_be_is_refused(size: Any) -> None:
    with pytest.raises(
        DefinitionError, match="expected size of a Batch to be a number of jobs from 1 to 1000"
    ):
        Batch(size=size)


@pytest.mark.parametrize("wait", [-1, "-1s", "soon", None, float("nan"), True])
def test_a_wait_that_is_no_duration_is_refused(wait: Any) -> None:
    with pytest.raises(DefinitionError, match="expected wait of a Batch to be"):
        Batch(size=2, wait=wait)


def test_a_wait_of_more_than_a_minute_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"60 s at most.*got: '2m'"):
        Batch(size=2, wait="2m")


def test_a_wait_is_a_duration() -> None:
    waits = [Batch(size=1, wait=wait).seconds for wait in ("200ms", 0.2, timedelta(seconds=0.2))]
    assert waits == [0.2] * 3
    assert Batch(size=1000).seconds == 0
