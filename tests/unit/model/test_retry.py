"""When a failed job runs again."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import DefinitionError
from eventbus.model.durations import LONGEST
from eventbus.model.event import Event
from eventbus.model.retry import Retry
from eventbus.telemetry.failure import Recorded, is_excluded, kinds_of, mark_recorded

_ERROR = RuntimeError("no")


def test_the_default_is_three_attempts_doubling_from_one_second() -> None:
    retry = Retry()
    assert retry.attempts == 3
    assert [retry.delay_after(attempt, _ERROR) for attempt in (1, 2, 3, 4)] == [1, 2, 4, 8]


def test_a_fixed_delay_stays_the_same() -> None:
    retry = Retry(delay="250ms", backoff="fixed")
    assert [retry.delay_after(attempt, _ERROR) for attempt in (1, 2, 10_000)] == [0.25] * 3


def test_max_delay_caps() -> None:
    assert Retry(delay=1, max_delay="5s").delay_after(4, _ERROR) == 5
    assert Retry(delay=1, max_delay=0).delay_after(4, _ERROR) == 0


def test_jitter_takes_a_share_off() -> None:
    retry = Retry(delay=10, jitter=0.5)
    assert retry.delay_after(1, _ERROR, rng=lambda: 0.0) == 10
    assert retry.delay_after(1, _ERROR, rng=lambda: 0.5) == 7.5
    assert Retry(delay=10, jitter=1).delay_after(1, _ERROR, rng=lambda: 1.0) == 0


def test_a_function_is_given_attempt_and_error() -> None:
    seen: list[tuple[int, BaseException]] = []

    def strategy(attempt: int, error: BaseException) -> timedelta:
        seen.append((attempt, error))
        return timedelta(seconds=attempt * 10)

    retry = Retry(backoff=strategy, max_delay=15)
    assert [retry.delay_after(1, _ERROR), retry.delay_after(2, _ERROR)] == [10, 15]
    assert seen == [(1, _ERROR), (2, _ERROR)]


def test_what_a_function_returns_is_checked() -> None:
    with pytest.raises(DefinitionError, match=r"expected the delay returned by backoff to be .*, got: -1"):
        Retry(backoff=lambda attempt, error: -1).delay_after(1, _ERROR)


@given(
    st.integers(1, 100_000),
    st.floats(0, LONGEST),
    st.none() | st.floats(0, LONGEST),
    st.floats(0, 1),
    st.sampled_from(["exponential", "fixed"]),
)
def test_every_delay_is_finite_and_within_its_limits(
    attempt: int, delay: float, max_delay: float | None, jitter: float, backoff: Any
) -> None:
    wait = Retry(delay=delay, max_delay=max_delay, jitter=jitter, backoff=backoff).delay_after(
        attempt, _ERROR
    )
    assert math.isfinite(wait)
    assert 0 <= wait <= (LONGEST if max_delay is None else max_delay)


def test_ways_to_write_a_duration_make_equal_rules() -> None:
    assert Retry(delay="1s", max_delay="1 minute") == Retry(delay=timedelta(seconds=1), max_delay=60.0)
    assert hash(Retry(delay="1s")) == hash(Retry())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "expected attempts to be a positive integer, got: 0"),
        ({"attempts": True}, "expected attempts to be a positive integer, got: True"),
        ({"attempts": 2.0}, "expected attempts to be a positive integer, got: 2.0"),
        ({"delay": -1}, "expected delay to be from 0 s to 100 years, got: -1"),
        ({"max_delay": "soon"}, "expected max_delay to be seconds, .*, got: 'soon'"),
        ({"backoff": "linear"}, "expected backoff to be .*, got: 'linear'"),
        ({"jitter": 1.5}, "expected jitter to be a number from 0 to 1, got: 1.5"),
        ({"jitter": math.nan}, "expected jitter to be a number from 0 to 1, got: nan"),
        ({"jitter": True}, "expected jitter to be a number from 0 to 1, got: True"),
        ({"jitter": "0.5"}, "expected jitter to be a number from 0 to 1, got: '0.5'"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Retry(**options)


@pytest.mark.parametrize(
    "retry", [Retry(), Retry(attempts=5, delay="2s", backoff="fixed", max_delay="1 hour", jitter=0.25)]
)
def test_a_rule_travels_as_json(retry: Retry) -> None:
    assert Retry.from_wire(msgspec.json.decode(msgspec.json.encode(retry.to_wire()))) == retry


def test_a_function_does_not_travel() -> None:
    with pytest.raises(DefinitionError, match="a function cannot be sent, set it on the handler"):
        Retry(backoff=lambda attempt, error: 1).to_wire()


def test_rules_of_other_releases_are_read() -> None:
    assert Retry.from_wire({"attempts": 2, "colour": "red"}) == Retry(attempts=2)


@pytest.mark.parametrize(
    "wire", [None, 5, [], "x", {"attempts": "3"}, {"delay": []}, {"backoff": {}}, {"jitter": None}]
)
def test_a_corrupt_rule_is_refused(wire: Any) -> None:
    with pytest.raises(DefinitionError, match="expected "):
        Retry.from_wire(wire)


def test_attempts_may_stand_first_without_their_name_and_nothing_else() -> None:
    assert Retry(5) == Retry(attempts=5)
    assert Retry(5, delay="2s") == Retry(attempts=5, delay=2)
    with pytest.raises(DefinitionError, match="expected attempts to be a positive integer, got: '5'"):
        Retry("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        Retry(5, 2)  # type: ignore[misc]  # pyright: ignore[reportCallIssue]


class _Late(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ()}, None),
        ({"only": (OSError,), "never": (FileNotFoundError,)}, None),
        ({"only": (_Late,), "never": (TimeoutError,)}, r"_Late.* is in only, but never has it"),
        ({"only": (OSError,), "never": (OSError,)}, r"contradict each other"),
        ({"only": OSError}, r"expected only of a Retry to be a tuple of exception classes, .*OSError"),
        ({"never": "ValueError"}, r"expected never of a Retry to be a tuple .*, got: 'ValueError'"),
        ({"never": [1]}, r"expected never of a Retry to be a tuple of exception classes.*, got: 1"),
        ({"only": (BaseException,)}, r"expected only of a Retry .*, got: .*BaseException"),
        ({"never": []}, r"expected never of a Retry to be a tuple of exception classes.*, got: \[\]"),
        ({"attempts": 1, "only": (OSError,)}, r"attempts=1 never tries again"),
    ],
)
def test_kinds_that_mean_nothing_or_contradict_are_refused(
    options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        Retry(**options)
        return
    with pytest.raises(DefinitionError, match=message):
        Retry(**options)


def test_kinds_do_not_travel() -> None:
    with pytest.raises(DefinitionError, match="cannot have only or never, because classes cannot be sent"):
        Retry(never=(ValueError,)).to_wire()


@pytest.mark.parametrize(
    ("rule", "error", "expected"),
    [
        (Retry(), ValueError(), False),
        (Retry(only=(OSError,)), FileNotFoundError(), False),
        (Retry(only=(OSError,)), ValueError(), True),
        (Retry(never=(OSError,)), FileNotFoundError(), True),
        (Retry(never=(OSError,)), ValueError(), False),
        (Retry(only=(OSError,), never=(FileNotFoundError,)), PermissionError(), False),
        (Retry(only=(OSError,), never=(FileNotFoundError,)), FileNotFoundError(), True),
    ],
)
def test_a_rule_excludes_kinds_of_errors_also_of_those_that_another_process_reported(
    rule: Retry, error: Exception, expected: bool
) -> None:
    assert is_excluded(error, rule) is expected
    reported = RuntimeError("what another process raised")
    mark_recorded(reported, Recorded("{}", is_final=False, kinds=tuple(kinds_of(error))))
    assert is_excluded(reported, rule) is expected


def test_a_rule_may_not_contradict_what_an_event_declares() -> None:
    with pytest.raises(DefinitionError, match=r"the retry of event 'e' has .*_Late.* in only, .* an answer"):
        Event("e", errors=[TimeoutError], retry=Retry(only=(_Late,)))
    with pytest.raises(DefinitionError, match=r"has .*_Late.* in never, but retry_on has it too"):
        Event("e", errors=[_Late], retry_on=[_Late], retry=Retry(never=(TimeoutError,)))
    Event("e", errors=[_Late], retry_on=[_Late], retry=Retry(only=(TimeoutError,)))
    Event("e", errors=[_Late], retry=Retry(never=(TimeoutError,)))
