"""Errors as they travel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import EmissionExpired, HandlerError, JobCancelled, ProcessDied, StalledError
from eventbus.telemetry.failure import MAX_TEXT, describe, describe_expired, is_answer, mark_own, revive


class Declared(Exception):
    pass


class Narrow(Declared):
    pass


class Particular(Exception):
    """Made from other things than its arguments say."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def _there_and_back(error: BaseException, *declared: type[Exception], attempts: int = 1) -> Exception:
    text = describe(error, attempts=attempts, declared=declared)
    return revive("failed", text, event="ask", job_id="j", declared=declared)


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_type_message_attempts_traceback_and_causes_are_kept() -> None:
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise LookupError("l") from OSError("o")
    except LookupError as error:
        back = _there_and_back(error, attempts=3)
    assert isinstance(back, HandlerError)
    assert (back.type_name, back.remote_message, back.attempts) == ("LookupError", "l", 3)
    assert (back.event, back.job_id) == ("ask", "j")
    assert back.causes == (("OSError", "o"),)
    assert "raise LookupError" in back.remote_traceback


def test_the_context_of_an_error_is_its_cause_unless_it_is_suppressed() -> None:
    def chain(*, suppress: bool) -> BaseException:
        try:
            try:
                raise KeyError("k")
            except KeyError:
                if suppress:
                    raise ValueError("v") from None
                raise ValueError("v")  # noqa: B904
        except ValueError as error:
            return error

    for suppress, causes in ((False, (("KeyError", "'k'"),)), (True, ())):
        back = _there_and_back(chain(suppress=suppress))
        assert isinstance(back, HandlerError)
        assert back.causes == causes


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, two = ValueError("1"), ValueError("2")
    one.__cause__, two.__cause__ = two, one
    back = _there_and_back(one)
    assert isinstance(back, HandlerError)
    assert back.causes == (("ValueError", "2"),)


def test_a_class_of_a_module_is_named_with_it() -> None:
    back = _there_and_back(Declared("x"))
    assert isinstance(back, HandlerError)
    assert back.type_name.endswith("test_failure.Declared")


@pytest.mark.parametrize("error", [Declared("a", 1), Narrow(), Declared({"k": [1, None]}), Declared("ü")])
def test_a_declared_error_is_made_again_from_its_arguments(error: Declared) -> None:
    back = _there_and_back(error, Declared)
    assert type(back) is Declared
    assert back.args == error.args
    assert isinstance(back.__cause__, HandlerError)


def test_the_nearest_declared_class_is_taken_in_the_order_of_the_declaration() -> None:
    assert type(_there_and_back(Narrow("x"), Narrow, Declared)) is Narrow


def test_an_error_whose_constructor_differs_comes_with_its_own_attributes() -> None:
    back = _there_and_back(Particular(code=5), Particular)
    assert type(back) is Particular
    assert str(back) == "code 5"
    assert back.code == 5


@pytest.mark.parametrize("argument", [object(), float("nan"), "x" * (MAX_TEXT + 1), "\ud800"])
def test_arguments_that_cannot_travel_become_the_message(argument: Any) -> None:
    back = _there_and_back(Declared(argument), Declared)
    assert type(back) is Declared
    assert len(back.args) == 1


def test_a_class_that_the_emitter_did_not_declare_is_a_handler_error() -> None:
    text = describe(Declared("x"), attempts=1, declared=[Declared])
    assert type(revive("failed", text, event="ask", job_id="j")) is HandlerError


def test_a_class_of_a_program_run_as_main_is_the_same_elsewhere() -> None:
    text = describe(Declared("x"), attempts=1, declared=[Declared])
    record = msgspec.json.decode(text)
    record["declared"] = "__main__.Declared"
    changed = msgspec.json.encode(record).decode()
    assert type(revive("failed", changed, event="a", job_id="j", declared=[Declared])) is Declared


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


def test_an_error_that_cannot_be_shown_is_described_all_the_same() -> None:
    back = _there_and_back(_raised(Unreadable("x")))
    assert isinstance(back, HandlerError)
    assert back.remote_message == "<the error has no readable text>"
    assert type(_there_and_back(_raised(Unreadable("x")), Unreadable)) is Unreadable


def test_a_long_text_is_cut_in_the_middle() -> None:
    back = _there_and_back(ValueError("a" * 50_000 + "z"))
    assert isinstance(back, HandlerError)
    assert len(back.remote_message) < MAX_TEXT + 100
    assert back.remote_message.endswith("z")
    assert "characters left out" in back.remote_message


@given(st.text(alphabet=st.characters(), max_size=50) | st.binary())
def test_any_message_travels(message: Any) -> None:
    for declared in ((), (ValueError,)):
        back = _there_and_back(_raised(ValueError(message)), *declared)
        assert isinstance(back, (HandlerError, ValueError))


def test_an_expiry_and_a_stall_of_the_job_itself_are_told_from_those_a_handler_met() -> None:
    own = describe_expired(EmissionExpired("too old"), attempts=0)
    assert type(revive("failed", own, event="a", job_id="j")) is EmissionExpired
    stalled = '{"type": "StalledError", "message": "3 times", "stalls": 3}'
    back = revive("failed", stalled, event="a", job_id="j")
    assert isinstance(back, StalledError)
    assert back.stalls == 3
    for met in (EmissionExpired("inner"), StalledError("inner", stalls=3)):
        assert type(_there_and_back(met)) is HandlerError


def test_a_cancellation_has_its_reason() -> None:
    back = revive("cancelled", '{"type": "JobCancelled"}', event="a", job_id="j")
    assert isinstance(back, JobCancelled)
    assert (str(back), back.reason) == ("job j was cancelled", "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"type": 5}', "\ud800", '{"type": "X", "causes": [1]}']
)
def test_a_record_that_cannot_be_read_is_an_error_that_shows_it(text: str) -> None:
    back = revive("failed", text, event="a", job_id="j")
    assert isinstance(back, HandlerError)
    assert "cannot be read" in str(back)


def test_a_declared_error_is_an_answer_unless_it_is_to_be_retried_or_no_handler_raised_it() -> None:
    own = TimeoutError("too late")
    mark_own(own)
    assert is_answer(Declared(), [Declared], [])
    assert is_answer(Narrow(), [Declared], [])
    assert is_answer(TimeoutError(), [TimeoutError], [])
    assert not is_answer(Narrow(), [Declared], [Narrow])
    assert not is_answer(ValueError(), [Declared], [])
    assert not is_answer(ValueError(), [], [])
    assert not is_answer(own, [TimeoutError], [])
    assert not is_answer(ProcessDied("signal 9"), [Exception], [])


def test_a_record_that_names_what_ran_knows_better_than_who_asks() -> None:
    text = describe(ValueError("no"), attempts=1, event="order.placed")
    assert "order.placed" in str(revive("failed", text, event="unknown", job_id="j"))
    older = msgspec.json.encode({"type": "ValueError", "message": "no"}).decode()
    assert "in the handler of unknown" in str(revive("failed", older, event="unknown", job_id="j"))
    expired = describe_expired(EmissionExpired("late", event="order.placed"), attempts=0)
    error = revive("failed", expired, event="unknown", job_id="j")
    assert isinstance(error, EmissionExpired)
    assert error.event == "order.placed"
