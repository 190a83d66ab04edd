"""Testing workflows: runs a workflow in this process, without a server, and reports what it did.

Definition, rules, types and errors are those of a distributed flow, but nothing is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import anyio
import msgspec

from eventbus import SignalRefused, UsageError
from eventbus.lowlevel import Duration
from workflows.client.reports.inline_report import report_inline
from workflows.definition.flow_definition import AnyWorkflow, definition_of
from workflows.definition.keywords import SignalKeywords
from workflows.definition.middleware import FlowMiddleware
from workflows.definition.signal import Signal
from workflows.definition.workflow import Workflow
from workflows.execution.attempt import wait_ended
from workflows.execution.environment import Environment
from workflows.functions.definition import Durable
from workflows.functions.history_check import FlowHistory, check_history
from workflows.inline.code_flow import CodeFlow
from workflows.inline.durable_flow import InlineDurable
from workflows.inline.flow import InlineFlow
from workflows.inline.machine_flow import InlineMachine
from workflows.inline.start import open_code, open_inline
from workflows.inline.triggers import InlineTriggers
from workflows.machines.machine import StateMachine
from workflows.machines.transition import Transition
from workflows.records.report import FlowReport, FlowStatus, RollbackReport, StepReport

__all__ = [
    "FlowHistory",
    "FlowReport",
    "FlowStatus",
    "InlineHandle",
    "RollbackReport",
    "StepReport",
    "replay",
    "run_inline",
    "start_inline",
]

I = TypeVar("I")  # noqa: E741  (input, beside O)
O = TypeVar("O")  # noqa: E741  (output)
T = TypeVar("T")


class InlineKeywords(TypedDict, total=False):
    """The options of a flow that runs here; `start_inline` documents each of them."""

    meta: Mapping[str, Any] | None
    timeout: Duration | None
    sleep: Callable[[float], Awaitable[Any]]
    provider: Any
    middleware: Sequence[FlowMiddleware]
    signals: Sequence[tuple[Signal[Any] | str, Any]]
    triggers: Sequence[tuple[Transition[Any] | str, Any]]


class InlineHandle(Generic[O]):
    """A flow of any kind that runs in this event loop; use it like the handle of a distributed flow.

    The handle owns the task of the flow: the caller must await `result`, or end the flow with `aclose`.
    """

    def __init__(self, flow: InlineFlow | CodeFlow, triggers: InlineTriggers | None = None) -> None:
        self.id: str = flow.facts.flow_id
        self._flow = flow
        self._triggers = triggers or InlineTriggers()
        self._ids: set[str] = set()
        """Of the signals and triggers that were sent, as far as their senders chose one."""
        self._task = asyncio.create_task(flow.settle(), name=f"inline flow {self.id}")

    async def result(self) -> O:
        """Wait for the end of the flow and return its output.

        Raises StepError, or the declared error that a step failed with, FlowTimeout, FlowCancelled;
        UsageError if the flow waits
        for something that cannot come, or has ended before all `triggers` were sent that were given to it.
        """
        await asyncio.shield(self._task)  # cancelling one waiter must not cancel the flow
        result = self._flow.outcome()
        self._triggers.check_taken(self.id)
        return result

    async def status(self) -> FlowStatus:
        """Return the state of the flow and of its rollbacks."""
        return self._flow.status()

    async def cancel(self, reason: str = "") -> bool:
        """Cancel the flow and roll back its completed steps.

        Return True if it will end with FlowCancelled, False if it has ended or was stopping already.
        """
        return self._flow.stop_for(reason)

    @overload
    async def signal(
        self, signal: Signal[None], payload: None = None, **options: Unpack[SignalKeywords]
    ) -> None: ...
    @overload
    async def signal(self, signal: Signal[T], payload: T, **options: Unpack[SignalKeywords]) -> None: ...
    @overload
    async def signal(self, signal: str, payload: Any = ..., **options: Unpack[SignalKeywords]) -> None: ...
    async def signal(
        self,
        signal: Signal[Any] | str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        call_timeout: Duration | None = None,  # noqa: ARG002  (nobody is called)
    ) -> None:
        """Send a signal, given as itself or by its name, to the flow, which keeps it until a step or the
        function waits for it.

        Of several with the same `signal_id` one counts, whatever became of it; `call_timeout` is accepted
        and ignored. Raises DefinitionError for a signal that nothing in the flow waits for, PayloadError for
        a payload that does not fit, and SignalRefused if the flow has ended or is stopping, or is one of a
        state machine, which takes triggers.
        """
        flow, name = self._flow, signal if isinstance(signal, str) else signal.name
        if not isinstance(flow, (InlineFlow, InlineDurable)):
            raise SignalRefused(self.id, name, "unwanted")
        known = flow.check_signal(signal)
        if signal_id in self._ids:
            return
        self._check_takes(known.name)
        flow.send(known, payload)
        self._note_id(signal_id)

    async def trigger(
        self,
        transition: Transition[Any] | str,
        payload: Any = None,
        *,
        trigger_id: str | None = None,
        call_timeout: Duration | None = None,  # noqa: ARG002  (nobody is called)
    ) -> None:
        """Fire a transition of a state machine that waits for it.

        Of several with the same `trigger_id` one counts; `call_timeout` is accepted and ignored. Raises
        DefinitionError for a transition that the machine does not have, PayloadError for a payload that does
        not fit, UsageError for a flow of another kind, and SignalRefused if the machine does not accept it
        now, has ended or is stopping.
        """
        flow, name = self._flow, transition if isinstance(transition, str) else transition.name
        if not isinstance(flow, InlineMachine):
            raise UsageError(f"flow {self.id} is not of a state machine, so it has no transition {name!r}")
        if trigger_id in self._ids:
            return
        self._check_takes(name, is_trigger=True)
        offered = flow.accepts
        if not flow.trigger(transition, payload):
            told = f"the machine accepts {', '.join(offered) or 'no trigger'} now"
            raise SignalRefused(self.id, name, "unwanted", told, is_trigger=True)
        self._note_id(trigger_id)

    def _note_id(self, signal_id: str | None) -> None:
        if signal_id:
            self._ids.add(signal_id)

    def _check_takes(self, name: str, *, is_trigger: bool = False) -> None:
        if self._task.done() or self._flow.is_stopping:
            reason = "ended" if self._task.done() else "stopping"
            raise SignalRefused(self.id, name, reason, is_trigger=is_trigger)

    async def report(self) -> FlowReport:
        """Return the report of the flow so far, step by step."""
        return self._flow.report() if isinstance(self._flow, InlineFlow) else report_inline(self._flow)

    async def aclose(self) -> None:
        """End the flow at once, like the end of the process: cancel running functions and undo nothing."""
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await wait_ended([self._task])


@overload
def start_inline(
    workflow: Workflow[I, O] | Durable[I, O], input: I, **options: Unpack[InlineKeywords]
) -> InlineHandle[O]: ...
@overload
def start_inline(
    workflow: type[StateMachine[I]], input: I, **options: Unpack[InlineKeywords]
) -> InlineHandle[Any]: ...
def start_inline(
    workflow: AnyWorkflow[Any, Any],
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    provider: Any = None,
    middleware: Sequence[FlowMiddleware] = (),
    signals: Sequence[tuple[Signal[Any] | str, Any]] = (),
    triggers: Sequence[tuple[Transition[Any] | str, Any]] = (),
) -> InlineHandle[Any]:
    """Start a flow of a workflow of any kind in this event loop and return its handle.

    `timeout` overrides the workflow's timeout; 0 is none. `sleep(seconds)` waits between attempts, in the
    steps that sleep, and for the timeout of a wait: for tests of these pass one that returns at once.
    `ctx.emit` uses `provider`; `middleware` is around each attempt, as `WorkflowProvider.use`. `signals`, or
    their names, are in the flow's inbox from the start, each with its payload, and `triggers` are those of
    state machines, as `run_inline` takes them; others may be sent with the handle. Raises DefinitionError and
    PayloadError before anything runs.
    """
    environment = Environment(provider=provider, sleep=sleep, middleware=middleware)
    definition = definition_of(workflow, "a workflow to run")
    given = InlineTriggers(triggers, definition)
    make = open_inline if isinstance(definition, Workflow) else open_code
    flow = make(
        definition,  # pyright: ignore[reportArgumentType]
        input,
        meta=meta,
        timeout=timeout,
        environment=environment,
        signals=signals,
        triggers=given,
        is_open=True,
    )
    return InlineHandle(flow, given)


@overload
async def run_inline(
    workflow: Workflow[I, O] | Durable[I, O],
    input: I,
    *,
    idempotency_key: str | None = ...,
    replay: Literal["", "always"] = ...,
    **options: Unpack[InlineKeywords],
) -> O: ...
@overload
async def run_inline(
    workflow: type[StateMachine[I]],
    input: I,
    *,
    idempotency_key: str | None = ...,
    replay: Literal["", "always"] = ...,
    **options: Unpack[InlineKeywords],
) -> Any: ...
async def run_inline(
    workflow: AnyWorkflow[Any, Any],
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,  # noqa: ARG001  (nothing is kept, so there is nothing to join)
    timeout: Duration | None = None,  # noqa: ASYNC109  (of the flow, with rollback)
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    provider: Any = None,
    middleware: Sequence[FlowMiddleware] = (),
    signals: Sequence[tuple[Signal[Any] | str, Any]] = (),
    replay: Literal["", "always"] = "",
    triggers: Sequence[tuple[Transition[Any] | str, Any]] = (),
) -> Any:
    """Run a flow in this process and return its output.

    `signals`, or their names, are in the flow's inbox from the start, each with its payload; no others come.
    `sleep` waits for its sleeps too. For the flow of a durable function, after it has returned, the flow's
    clock shows the time that was slept to. With `replay="always"` the function starts again from its top
    after each record, so that a test finds what is not the same in each replay: it raises NonDeterminismError
    then. Raises UsageError if the flow waits for a signal that does not come.

    `triggers` are those of state machines, the outermost flow or flows inside it: transitions or their names,
    each with its payload, in the order in which they come. A machine takes its next one when it rests; of
    several flows of one machine, that is the one which rests first. Raises UsageError if it does not accept
    that one, waits for one that does not come, or if the flow ends before the last one. A transition that
    failed for good, behind which no trigger is left, ends its machine: it is undone, and StepError raised.

    The other options are those of `start_inline`; an `idempotency_key` is accepted and ignored. Raises the
    errors of the handle's `result`. Cancelling this call cancels the running functions and undoes nothing,
    like the end of the process.
    """
    environment = Environment(provider=provider, sleep=sleep, middleware=middleware)
    definition = definition_of(workflow, "a workflow to run")
    given = InlineTriggers(triggers, definition)
    if not isinstance(definition, Workflow):
        flow = open_code(
            definition,
            input,
            meta=meta,
            timeout=timeout,
            environment=environment,
            signals=signals,
            triggers=given,
            replays=replay == "always",
        )
        result = await flow.run()
        given.check_taken(flow.facts.flow_id)
        return result
    flow = open_inline(
        definition,
        input,
        meta=meta,
        timeout=timeout,
        environment=environment,
        signals=signals,
        triggers=given,
        is_open=False,
    )
    handle: InlineHandle[Any] = InlineHandle(flow, given)
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await handle.aclose()  # no function of the flow may outlive this call
        raise


async def replay(durable: Durable[Any, Any], history: FlowHistory | bytes | str) -> None:
    """Run a durable function against what a flow of it has recorded, without effects.

    `history` is a file of `eventbus flows export`, or its text. Raises NonDeterminismError if the function
    does something else than the flow recorded. The first call that is not recorded ends the replay. Raises
    UsageError for other texts.
    """
    if not isinstance(history, FlowHistory):
        try:
            history = msgspec.json.decode(history, type=FlowHistory)
        except msgspec.MsgspecError as error:
            raise UsageError(f"this is no history of a flow: {error}") from None
    error = await check_history(durable, history)
    if error is not None:
        raise error
