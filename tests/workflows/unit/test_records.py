"""Records of flows: how they are written and read, and the errors made from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventbus import HandlerError, StalledError
from eventbus.lowlevel import Failure, describe, describe_cancelled, revive
from workflows.errors import FlowCancelled, FlowError, FlowTimeout, RollbackError, StepError
from workflows.records.records import (
    FlowFailure,
    FlowMessage,
    StepRecord,
    decode_message,
    decode_step,
    describe_flow,
    encode_message,
    encode_step,
    read_flow,
    revive_error,
    revive_flow,
)

_FLOW: dict[str, Any] = {"flow_id": "w~1", "workflow": "w"}


class Declared(Exception): ...


def _failure(error: Exception, **options: Any) -> str:
    return describe(error, attempts=2, **options)


def test_a_message_is_small_and_reads_back() -> None:
    message = FlowMessage(input=msgspec.Raw(b'{"n":1}'))
    assert encode_message(message) == '{"i":{"n":1}}'
    full = FlowMessage(
        input=msgspec.Raw(b"1"),
        version="v",
        meta={"a": 1},
        correlation_id="c",
        causation_id="j",
        traceparent="t",
        tracestate="s",
        key="k",
        run=2,
        timeout=1.5,
        kept={"a": 1},
    )
    text = encode_message(full)
    assert set(msgspec.json.decode(text)) == set("ivmcatskn") | {"o", "e"}
    read = decode_message(text)
    assert bytes(read.input) == b"1"
    assert msgspec.structs.replace(read, input=full.input) == full


def test_unknown_keys_are_ignored_and_what_is_no_message_is_refused() -> None:
    assert decode_message('{"i":1,"later":2}').run == 1
    for text in ("", "[]", "{}", '{"i":1,"n":"x"}'):
        with pytest.raises(msgspec.DecodeError):
            decode_message(text)


def test_a_steps_record_holds_its_result_as_it_was_coded() -> None:
    assert encode_step(StepRecord(result=msgspec.Raw(b'{"a": 1.0}'))) == '{"r":{"a": 1.0}}'
    assert bytes(decode_step('{"r":{"a": 1.0}}').result) == b'{"a": 1.0}'
    skipped = encode_step(StepRecord(skipped=True))
    assert decode_step(skipped).skipped
    assert bytes(decode_step("{}").result) == b"null"


def test_a_step_error_comes_back_whole() -> None:
    text = describe_flow(
        "failed",
        **_FLOW,
        step="a",
        error=_failure(ValueError("no")),
        job="w~1/1/a/0",
        rollback="incomplete",
        rollback_errors=[("b", _failure(KeyError("x"))), ("c/d", _failure(OSError("y")))],
    )
    error = revive_flow("failed", text, "w", "w~1")
    assert isinstance(error, StepError)
    assert (error.step, error.flow_id, error.workflow, error.rollback) == ("a", "w~1", "w", "incomplete")
    assert isinstance(error.error, HandlerError)
    assert (error.error.event, error.error.job_id, error.error.attempts) == ("w.a", "w~1/1/a/0", 2)
    assert [type(each) for each in error.rollback_errors] == [RollbackError] * 2
    assert [each.step for each in error.rollback_errors] == ["b", "c/d"]
    assert str(read_flow(text)) == str(error)


def test_a_timeout_and_a_cancel_come_back_with_their_facts() -> None:
    late = revive_flow("failed", describe_flow("timeout", **_FLOW, timeout=2.5), "w", "w~1")
    assert isinstance(late, FlowTimeout)
    assert (late.timeout, late.rollback) == (2.5, "none")
    gone = revive_flow("cancelled", describe_flow("cancelled", **_FLOW, reason="bye"), "w", "w~1")
    assert isinstance(gone, FlowCancelled)
    assert gone.reason == "bye"


def test_a_flows_failure_reads_as_a_plain_failure_too() -> None:
    text = describe_flow("failed", **_FLOW, step="a", error=_failure(ValueError("no")))
    plain = msgspec.json.decode(text, type=Failure)
    assert plain.type == "StepError"
    assert plain.message.startswith("step 'a' of flow w~1 failed: ValueError: no")
    error = revive("failed", text, event="w", job_id="w~1")
    assert isinstance(error, HandlerError)
    assert error.type_name == "StepError"
    assert issubclass(FlowFailure, Failure)


def test_a_declared_error_is_raised_as_itself_with_the_whole_as_its_cause() -> None:
    text = describe_flow("failed", **_FLOW, step="a", error=_failure(Declared("x"), declared=[Declared]))
    error = revive_flow("failed", text, "w", "w~1", [Declared])
    assert isinstance(error, Declared)
    assert error.args == ("x",)
    whole = error.__cause__
    assert isinstance(whole, StepError)
    assert whole.error is error
    assert isinstance(whole.__cause__, HandlerError)  # and not the error again, which would be a ring
    assert isinstance(revive_flow("failed", text, "w", "w~1"), StepError)
    assert isinstance(read_flow(text, [Declared]), StepError)


def test_the_error_of_a_sub_workflow_comes_back_as_a_flows() -> None:
    inner = describe_flow(
        "failed", flow_id="w~1/1/s/0/i~0", workflow="i", step="x", error=_failure(ValueError())
    )
    error = revive_flow("failed", describe_flow("failed", **_FLOW, step="s", error=inner), "w", "w~1")
    assert isinstance(error, StepError)
    assert isinstance(error.error, StepError)
    assert (error.step, error.error.step, error.error.workflow) == ("s", "x", "i")
    assert isinstance(revive_error(inner, owner="w.s", job="j"), FlowError)


def test_records_of_the_engines_own_come_back_as_the_job_errors_they_are() -> None:
    gone = revive_flow("cancelled", describe_cancelled("by hand"), "w", "w~1")
    assert isinstance(gone, FlowCancelled)
    assert gone.reason == "by hand"
    stalled = msgspec.json.encode(Failure("StalledError", "died", stalls=4)).decode()
    assert isinstance(revive_flow("failed", stalled, "w", "w~1"), StalledError)
    error = revive_flow("failed", "{ no json", "w", "w~1")
    assert isinstance(error, HandlerError)
    assert "cannot be read" in str(error)
    # Fields of a flow's failure under another type are not enough to be one.
    odd = msgspec.json.encode({"type": "ValueError", "flow_id": "w~1", "workflow": "w"}).decode()
    assert isinstance(revive_flow("failed", odd, "w", "w~1"), HandlerError)
