"""Handles of flows: a caller waits for, inspects and cancels a flow with one, from any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, Unpack, overload

import msgspec

from eventbus.lowlevel import Codec, Duration, Emission, JobClient, seconds
from workflows.client.sent_signals import SignalSender
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.keywords import SignalKeywords, TriggerKeywords
from workflows.definition.signal import Signal
from workflows.machines.transition import Transition
from workflows.records.ids import flow_queue, workflow_of
from workflows.records.records import revive_flow
from workflows.records.report import FlowReport, FlowStatus

T = TypeVar("T")

O = TypeVar("O", covariant=True)  # noqa: E741, PLC0105  (output)


class FlowOutcomeDecoder:
    """Decodes the outcomes of a workflow's flows; implements `eventbus.lowlevel.OutcomeDecoder`."""

    def __init__(
        self,
        workflow: str,
        output: Codec,
        errors: Sequence[type[Exception]],
        state: Codec | None = None,
        definition: AnyDefinition | None = None,
    ) -> None:
        """Decode with `output`, and live states with `state`; without it, these are untyped JSON.

        With `definition`, signals that it does not declare are refused, and triggers that it does not have.
        """
        self.definition: AnyDefinition | None = definition
        self.name: str = f"workflow {workflow}"
        self.queue: str = flow_queue(workflow)
        self._output = output
        self._state = state
        self._workflow = workflow
        self._errors = errors

    def decode_result(self, text: str) -> Any:
        """Return the flow's output from its JSON text."""
        return self._output.decode(text)

    def decode_state(self, text: str) -> Any:
        """Return a live state from its JSON text."""
        return msgspec.json.decode(text) if self._state is None else self._state.decode(text)

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        """Return the flow's error from its record; a declared error is returned as itself."""
        return revive_flow(state, text, self._workflow, job_id, self._errors)


class Reporter(Protocol):
    """The calls that a handle passes on to its provider."""

    async def status(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowStatus:
        """Return the state of the flow."""
        ...

    async def report(self, flow_id: str, *, call_timeout: Duration | None = None) -> FlowReport:
        """Return the recorded state of the flow and its steps."""
        ...

    async def retry(
        self,
        flow_id: str,
        resume: bool | None = None,
        *,
        target: str | None = None,
        call_timeout: Duration | None = None,
    ) -> Any:
        """Run the flow again."""
        ...


class FlowHandle(Generic[O]):
    """A handle of one flow. It has no state: any number of handles of a flow may be used in any process.

    `call_timeout` is how long the server may take to answer the call, by default the provider's
    `reply_timeout`. A call that takes longer raises StoreUnavailable.
    """

    def __init__(
        self,
        flow_id: str,
        jobs: JobClient,
        reading: FlowOutcomeDecoder,
        reporter: Reporter,
        sender: SignalSender,
        emission: Emission[Any] | None = None,
    ) -> None:
        """Use `WorkflowProvider.execute` or `handle` instead. `emission` waits for the outcome already."""
        self._id = flow_id
        self._jobs = jobs
        self._reading = reading
        self._reporter = reporter
        self._sender = sender
        self._emission = emission

    @property
    def id(self) -> str:
        """The flow's id, which contains the name of its workflow; `flows.handle(id)` works in any process."""
        return self._id

    @property
    def workflow(self) -> str:
        """The name of its workflow."""
        return workflow_of(self._id)

    async def result(self, timeout: Duration | None = None) -> O:  # noqa: ASYNC109  (of the wait)
        """Wait for the end of the flow and return its output; also after the end, as long as it is retained.

        `timeout` bounds only this wait; the flow continues. Raises StepError, or the declared error that a
        step failed with, FlowTimeout, FlowCancelled; ResponseTimeout past `timeout` (after a last look at the
        recorded state), UnknownJob, ProviderStopped, PayloadError for an output that cannot be decoded, and
        StoreUnavailable if the server cannot be reached for the first look.
        """
        # The emission gets the outcome from its reply stream; without one the server must be asked.
        if self._emission is not None and timeout is None:
            return await self._emission
        limit = None if timeout is None else seconds(timeout, setting="timeout") or None
        return await self._jobs.result(self._id, self._reading, limit)

    async def status(self, *, call_timeout: Duration | None = None) -> FlowStatus:
        """Return the recorded state of the flow and of its rollbacks. Raises UnknownJob, StoreError."""
        return await self._reporter.status(self._id, call_timeout=call_timeout)

    async def cancel(self, reason: str = "", *, call_timeout: Duration | None = None) -> bool:
        """Stop the flow and roll back its completed steps; return once the request is recorded.

        Running steps are cancelled within a second, in any process; other steps never start. True means that
        the flow will end with FlowCancelled. False means that it had ended already, or was stopping for
        another reason (see `status`), which remains its outcome; steps that still run are cancelled even
        then. Raises UnknownJob, StoreError.
        """
        return await self._jobs.cancel(self._id, reason, call_timeout=call_timeout)

    async def report(self, *, call_timeout: Duration | None = None) -> FlowReport:
        """Return the recorded state of the flow's steps and rollbacks. Raises UnknownJob, StoreError."""
        return await self._reporter.report(self._id, call_timeout=call_timeout)

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
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a signal, given as itself or by its name, to the flow, which keeps it until a wait takes it.

        Return once it is recorded. The payload of a name has the type that the flow's definition gives the
        signal, if that is known here, and is else a value of JSON. Of several with the same `signal_id` one
        is kept, as long as no wait has taken it. Raises DefinitionError, and sends nothing, for a signal that
        the flow's definition does not declare: the one that is known here, or else that of its version as a
        worker has told it; a function without `signals` takes any. Raises PayloadError, and sends nothing,
        for a payload that does not fit; UsageError for a `signal_id` of more than 256 bytes; SignalRefused if
        the flow has ended or is stopping, or has too many signals that it has not taken; UnknownJob,
        StoreError.
        """
        await self._sender.send(
            self._id,
            signal,
            payload,
            definition=self._reading.definition,
            signal_id=signal_id or "",
            call_timeout=call_timeout,
        )

    @overload
    async def trigger(
        self, transition: Transition[None], payload: None = None, **options: Unpack[TriggerKeywords]
    ) -> None: ...
    @overload
    async def trigger(
        self, transition: Transition[T], payload: T, **options: Unpack[TriggerKeywords]
    ) -> None: ...
    @overload
    async def trigger(
        self, transition: str, payload: Any = ..., **options: Unpack[TriggerKeywords]
    ) -> None: ...
    async def trigger(
        self,
        transition: Transition[Any] | str,
        payload: Any = None,
        *,
        trigger_id: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Fire a transition of a state machine that waits, such as `Review.approve`; return once the trigger
        is recorded.

        It is recorded only if the place of the machine accepts it now, and then the place is closed: of two
        triggers one fires. Of several with the same `trigger_id`, which has no spaces, one counts, as long as
        it is one of the last 100 signals and triggers that the flow was sent. A name in place of a transition
        needs no definition here; its payload is then checked by the worker. If the guard of the transition is
        false, or the payload does not fit there, the report of the flow says `refused`, and the machine
        stays.

        Raises DefinitionError for a transition that the machine does not have, PayloadError for a payload
        that does not fit, UsageError for a `trigger_id` of more than 256 bytes, SignalRefused if the machine
        does not accept it now, or has ended; UnknownJob, StoreError. Nothing is changed then.
        """
        await self._sender.trigger(
            self._id,
            transition,
            payload,
            definition=self._reading.definition,
            trigger_id=trigger_id or "",
            call_timeout=call_timeout,
        )

    async def retry(
        self, resume: bool | None = None, *, target: str | None = None, call_timeout: Duration | None = None
    ) -> None:
        """Run the flow again, as `WorkflowProvider.retry` does; return once that is recorded.

        A state machine that has not ended runs the transition again that failed, or with `target` moves to
        that place first. Raises FlowNotEnded, UsageError, UnknownJob, StoreError.
        """
        await self._reporter.retry(self._id, resume, target=target, call_timeout=call_timeout)
        self._emission = None  # its outcome would be that of the run before

    async def state(self) -> Any:
        """Return what the flow's code set last as `ctx.state`, in the type of its definition; None before
        that.

        Of a state machine it is the state behind the last move.

        Raises PayloadError if it does not fit that type, and StoreError.
        """
        text = await self._jobs.live(self._id, "state")
        return None if text is None else self._reading.decode_state(text)

    def __repr__(self) -> str:
        return f"<FlowHandle {self._id}>"
