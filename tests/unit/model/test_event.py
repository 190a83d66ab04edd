"""Definitions of events."""

from __future__ import annotations

import copy
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
        ({"errors": [5]}, "expected errors of event 'a' to be a list of exception classes, got: 5"),
        (
            {"errors": ValueError},
            "expected errors of event 'a' to be a list of .*, got: <class 'ValueError'>",
        ),
        ({"errors": None}, "expected errors of event 'a' to be a list of .*, got: None"),
        ({"retry_on": ["x"]}, "expected retry_on of event 'a' to be a list of exception classes, got: 'x'"),
        (
            {"retry_on": [KeyError]},
            "retry_on of event 'a' has KeyError, which is not among its errors; add it",
        ),
        (
            {"errors": [KeyError], "retry_on": [LookupError]},
            "retry_on of event 'a' has LookupError, which is not",
        ),
        ({"errors": [KeyboardInterrupt]}, "expected errors"),
        ({"retry": 3}, "expected retry of event 'a' to be a Retry, such as Retry.attempts=3., got: 3"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Event(options.pop("name", "a"), **options)


def test_what_is_retried_may_be_a_part_of_what_is_declared() -> None:
    event = Event(
        "a",
        errors=(kind for kind in (LookupError, OSError)),  # pyright: ignore[reportArgumentType]
        retry_on={KeyError},  # pyright: ignore[reportArgumentType]
    )
    assert (event.errors, event.retry_on) == ((LookupError, OSError), (KeyError,))


@pytest.mark.parametrize("name", ["name", "payload", "errors", "retry", "unknown"])
def test_an_event_stays_as_it_was_made(name: str) -> None:
    event = Event("order.placed", payload=int)
    with pytest.raises(
        AttributeError, match=f"cannot set {name} of Event.'order.placed'.: an event stays as it"
    ):
        setattr(event, name, 5)
    with pytest.raises(AttributeError, match=f"cannot delete {name} of Event"):
        delattr(event, name)
    assert (event.name, event.payload) == ("order.placed", int)


def test_an_event_is_copied_as_it_is() -> None:
    event = Event("a", payload=int, errors=[ValueError])
    assert vars(copy.deepcopy(event)) == vars(copy.copy(event)) == vars(event)
    assert Event[int, str]("b").name == "b"  # which writes an attribute of its own, if it may
