"""Definitions of events."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import DefinitionError, Event, Retry


def test_what_is_not_given_has_its_default() -> None:
    event = Event("order.placed")
    assert (event.name, event.payload, event.result) == ("order.placed", Any, Any)
    assert (event.key, event.ttl, event.errors, event.retry) == (None, None, (), None)
    assert (event.reply, event.default) == (True, True)
    assert repr(event) == "Event('order.placed')"


def test_durations_are_seconds_and_errors_a_tuple() -> None:
    event = Event("a", ttl="1 day", errors=[ValueError], retry=Retry(attempts=1))
    assert (event.ttl, event.errors, event.retry) == (86_400, (ValueError,), Retry(attempts=1))


def test_without_a_default_group_nobody_answers() -> None:
    assert Event("a", default=False).reply is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a b"}, "expected an event name"),
        ({"name": 5}, "expected an event name"),
        ({"ttl": -1}, "expected ttl"),
        ({"ttl": "soon"}, "expected ttl"),
        ({"key": "id"}, "expected key of event 'a' to be a function of its payload, got: 'id'"),
        ({"errors": [5]}, "expected errors of event 'a' to be exception classes, got: 5"),
        ({"errors": [KeyboardInterrupt]}, "expected errors"),
        ({"retry": 3}, "expected retry of event 'a' to be a Retry, got: 3"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Event(options.pop("name", "a"), **options)
