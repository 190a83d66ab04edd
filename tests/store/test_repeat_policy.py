"""What comes next for a call whose last try failed, case by case and without a server."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.connector import TRANSIENT
from eventbus.store.connection.repeat_policy import (
    Decision,
    GiveUp,
    OpenShard,
    SendWhole,
    Wait,
    decide,
    is_transient,
)
from eventbus.store.connection.replication import NoReplica

_NOW = 1000.0
_PAUSE = 0.5
_WHOLE = ("EVAL", "return 1", 2, "r:2:{0}:queues", "r:2:{0}:none", b"")

_LOST = StoreUnavailable("lost", sent=True)
_NEVER_SENT = StoreUnavailable("no server")
_NO_REPLICA = NoReplica("no replica acknowledged it", sent=True)
_UNEXPECTED = StoreError("answered unexpectedly")
_LASTING = [
    "CROSSSLOT",
    "ERR",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "OOM",
    "STALE",
    "WRONGPASS",
    "WRONGTYPE",
]


def _refused(code: str) -> StoreRefused:
    return StoreRefused(f"refused: {code}", code=code)


def _decide(error: StoreError, **changed: Any) -> Decision:
    """Decide about a call that has time left, with nothing to send in its command's place."""
    facts: dict[str, Any] = {
        "deadline": _NOW + 60,
        "now": _NOW,
        "pause": _PAUSE,
        "whole": None,
        "is_closed": False,
    }
    return decide(error, **facts | changed)


_PASSING = [_LOST, _NEVER_SENT, _NO_REPLICA, *map(_refused, sorted(TRANSIENT))]
_ENDING = [_UNEXPECTED, *map(_refused, _LASTING)]


def _name(error: StoreError) -> str:
    return str(error)


@pytest.mark.parametrize("error", _PASSING, ids=_name)
def test_what_may_pass_is_waited_for(error: StoreError) -> None:
    assert is_transient(error)
    assert _decide(error) == Wait(_PAUSE)


@pytest.mark.parametrize("error", _ENDING, ids=_name)
def test_what_would_be_refused_again_is_given_up(error: StoreError) -> None:
    assert not is_transient(error)
    assert _decide(error) == GiveUp()


@pytest.mark.parametrize("error", _PASSING, ids=_name)
def test_without_a_deadline_a_call_waits_for_ever(error: StoreError) -> None:
    assert _decide(error, deadline=None, now=1e12, pause=1e6) == Wait(1e6)


@pytest.mark.parametrize(
    ("left", "decision"),
    [
        (_PAUSE + 0.01, Wait(_PAUSE)),
        (_PAUSE, GiveUp()),  # the try would begin at its deadline
        (_PAUSE / 2, GiveUp()),
        (0.0, GiveUp()),
        (-1.0, GiveUp()),
    ],
)
def test_no_try_begins_that_cannot_be_answered_before_the_deadline(left: float, decision: Decision) -> None:
    assert _decide(_LOST, deadline=_NOW + left) == decision


@pytest.mark.parametrize("deadline", [None, _NOW + 60])
@pytest.mark.parametrize("error", _PASSING, ids=_name)
def test_a_closed_channel_ends_the_waiting(error: StoreError, deadline: float | None) -> None:
    assert _decide(error, deadline=deadline, is_closed=True) == GiveUp()


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("deadline", [None, _NOW + 60, _NOW + 0.01, _NOW - 1])
def test_an_unknown_script_is_sent_whole_at_once(deadline: float | None, is_closed: bool) -> None:
    # Without a pause, so neither a deadline nor a closed channel is asked about: the send itself meets them.
    facts = {"deadline": deadline, "is_closed": is_closed}
    assert _decide(_refused("NOSCRIPT"), whole=_WHOLE, **facts) == SendWhole(_WHOLE)


def test_an_unknown_script_is_given_up_when_the_source_was_sent_or_there_is_none() -> None:
    assert _decide(_refused("NOSCRIPT"), whole=None) == GiveUp()


@pytest.mark.parametrize("error", [*_PASSING, *_ENDING], ids=_name)
def test_a_source_is_only_sent_for_an_unknown_script(error: StoreError) -> None:
    assert _decide(error, whole=_WHOLE) == _decide(error, whole=None)


@pytest.mark.parametrize(
    ("left", "decision"),
    [(None, OpenShard(_PAUSE)), (60.0, OpenShard(_PAUSE)), (_PAUSE, GiveUp()), (-1.0, GiveUp())],
)
def test_a_shard_that_is_not_open_is_opened_if_there_is_time(left: float | None, decision: Decision) -> None:
    deadline = None if left is None else _NOW + left
    assert _decide(_refused("NOSHARD"), deadline=deadline) == decision


def test_a_closed_channel_opens_no_shard() -> None:
    assert _decide(_refused("NOSHARD"), deadline=None, is_closed=True) == GiveUp()
