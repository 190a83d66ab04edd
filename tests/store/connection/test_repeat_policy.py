"""What comes next for a call whose last try failed, case by case and without a server."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.invocation import Form
from eventbus.store.connection.repeat_policy import (
    TOO_LATE,
    Decision,
    GiveUp,
    LoadLibrary,
    OpenShard,
    SendAgain,
    SendAs,
    decide,
    is_transient,
)
from eventbus.store.connection.replication import NoReplica
from eventbus.store.connection.translation import TRANSIENT

_NOW = 1000.0
_PAUSE = 0.5

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
    """Decide about a call that has time left, and that has no other form."""
    facts: dict[str, Any] = {
        "deadline": _NOW + 60,
        "now": _NOW,
        "pause": _PAUSE,
        "form": Form.PLAIN,
        "may_load": True,
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
    assert _decide(error) == SendAgain(_PAUSE)


@pytest.mark.parametrize("error", _ENDING, ids=_name)
def test_what_would_be_refused_again_is_given_up(error: StoreError) -> None:
    assert not is_transient(error)
    assert _decide(error) == GiveUp()


@pytest.mark.parametrize("error", _PASSING, ids=_name)
def test_without_a_deadline_a_call_waits_for_ever(error: StoreError) -> None:
    assert _decide(error, deadline=None, now=1e12, pause=1e6) == SendAgain(1e6)


@pytest.mark.parametrize(
    ("left", "decision"),
    [
        (_PAUSE + 0.01, SendAgain(_PAUSE)),
        (_PAUSE, SendAgain(_PAUSE / 2)),  # otherwise the try would begin at its deadline, or not at all
        (_PAUSE / 2, SendAgain(_PAUSE / 4)),
        (TOO_LATE, GiveUp()),
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


_ANY_TIME = pytest.mark.parametrize("deadline", [None, _NOW + 60, _NOW + 0.01, _NOW - 1])
"""Without a pause, so neither a deadline nor a closed channel is asked about: the send itself meets them."""


@pytest.mark.parametrize("is_closed", [False, True])
@_ANY_TIME
def test_an_unknown_script_is_sent_whole_at_once(deadline: float | None, is_closed: bool) -> None:
    facts = {"deadline": deadline, "is_closed": is_closed}
    assert _decide(_refused("NOSCRIPT"), form=Form.DIGEST, **facts) == SendAs(Form.SOURCE)


@pytest.mark.parametrize("form", [Form.PLAIN, Form.SOURCE, Form.FUNCTION])
def test_an_unknown_script_is_given_up_when_it_was_not_named_by_its_digest(form: Form) -> None:
    assert _decide(_refused("NOSCRIPT"), form=form) == GiveUp()


@pytest.mark.parametrize("form", [Form.DIGEST, Form.SOURCE])
@pytest.mark.parametrize("error", [*_PASSING, *_ENDING], ids=_name)
def test_a_script_is_sent_in_another_form_only_where_it_is_unknown(error: StoreError, form: Form) -> None:
    assert _decide(error, form=form) == _decide(error)


@pytest.mark.parametrize("is_closed", [False, True])
@_ANY_TIME
def test_an_unknown_function_gets_its_library_and_else_goes_on_by_its_digest(
    deadline: float | None, is_closed: bool
) -> None:
    facts = {"deadline": deadline, "is_closed": is_closed, "form": Form.FUNCTION}
    assert _decide(_refused("NOFUNCTION"), **facts) == LoadLibrary()
    assert _decide(_refused("NOFUNCTION"), may_load=False, **facts) == SendAs(Form.DIGEST)


@pytest.mark.parametrize("code", ["OOM", "READONLY", "MISCONF", "NOREPLICAS"])
@_ANY_TIME
def test_a_function_that_is_refused_before_it_begins_goes_on_by_its_digest(
    code: str, deadline: float | None
) -> None:
    assert _decide(_refused(code), form=Form.FUNCTION, deadline=deadline) == SendAs(Form.DIGEST)


@pytest.mark.parametrize("code", ["NOPERM", "ERR"])
def test_functions_that_the_server_or_the_rights_refuse_are_not_tried_again(code: str) -> None:
    assert _decide(_refused(code), form=Form.FUNCTION) == SendAs(Form.DIGEST, is_lasting=True)


@pytest.mark.parametrize("code", ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "NOPERM", "ERR"])
def test_a_function_that_ended_with_an_error_is_treated_as_a_script_that_did(code: str) -> None:
    error = StoreRefused(f"{code} command refused script: turn, on @user_function:63.", code=code)
    assert _decide(error, form=Form.FUNCTION) == _decide(error, form=Form.DIGEST) == _decide(error)


@pytest.mark.parametrize("code", ["STALE", "WRONGTYPE", "CROSSSLOT", "MOVED", "NOAUTH", "LOADING", "BUSY"])
def test_what_has_nothing_to_do_with_functions_changes_no_form(code: str) -> None:
    assert _decide(_refused(code), form=Form.FUNCTION) == _decide(_refused(code))


@pytest.mark.parametrize(
    ("left", "decision"),
    [(None, OpenShard(_PAUSE)), (60.0, OpenShard(_PAUSE)), (_PAUSE, OpenShard(_PAUSE / 2)), (-1.0, GiveUp())],
)
def test_a_shard_that_is_not_open_is_opened_if_there_is_time(left: float | None, decision: Decision) -> None:
    deadline = None if left is None else _NOW + left
    assert _decide(_refused("NOSHARD"), deadline=deadline) == decision


def test_a_closed_channel_opens_no_shard() -> None:
    assert _decide(_refused("NOSHARD"), deadline=None, is_closed=True) == GiveUp()
