"""Firing a transition: one attempt of its body on a copy of the state, and what came of it.

What must always hold: what a body did is either all there, as values, or not at all; its context is closed
before that is looked at. A body that was cut and returned nevertheless has fired: its move counts, because it
must be undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import contained, shown
from workflows.execution.attempt import AttemptRun
from workflows.execution.surroundings import Surroundings
from workflows.machines.choosing import Fire
from workflows.machines.context import MachineContext, NewChild
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import NOTHING, Snapshot, document_name
from workflows.machines.transition import END, Transition

MakeContext = Callable[[Snapshot, str, Transition[Any], int], MachineContext[Any]]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What a body did: the state as JSON, documents as live texts, new children, and the result of the flow
    at its end.
    """

    state: str
    documents: dict[str, str]
    children: list[NewChild]
    result: msgspec.Raw
    traceparent: str


class BodyFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A body failed. With `is_final` no other attempt could come to something else."""

    error: BaseException
    is_final: bool = False


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A body was cancelled and ended by that. With `is_lost` it was given up on: it may still run, so its
    effect is unknown.
    """

    is_lost: bool = False


class Firing:
    """Makes the attempts of one activation."""

    def __init__(
        self, definition: MachineDefinition, around: Surroundings, make_context: MakeContext
    ) -> None:
        """`make_context(snapshot, state, transition, attempt)` makes the context of a body."""
        self._definition = definition
        self._machine: Any = None
        self._around = around
        self._make_context = make_context
        self.cancellation: asyncio.CancelledError | None = None
        """How `fire` was cancelled, if it was; the caller must pass that on, once what came of the attempt
        is recorded."""

    async def fire(self, fire: Fire, snapshot: Snapshot, state: str) -> Moved | BodyFailure | Cut:
        """Make one attempt. A cancellation of this call cuts the body, and is not raised (`cancellation`)."""
        if fire.error is not None:
            return BodyFailure(error=fire.error)
        if fire.transition.after == "all" and (errors := fire.argument[0].errors):
            return BodyFailure(error=errors[0], is_final=True)
        transition = fire.transition
        try:
            if self._machine is None:
                self._machine = contained(self._definition.machine)
            context = self._make_context(snapshot, state, transition, fire.attempts + 1)
        except Exception as error:  # noqa: BLE001  (a state of another release, or `__init__`)
            return BodyFailure(error=error)
        attempt = AttemptRun(
            lambda: self._call(fire, context), what=transition.where, timeout=transition.timeout
        )
        try:
            ended = await attempt.run(cut_on_cancel=True)
        finally:
            context.close()
            self.cancellation = attempt.cancellation
        if ended.is_cut:
            return Cut(is_lost=ended.is_lost)
        if ended.error is not None:
            return BodyFailure(error=ended.error)
        value, traceparent = ended.value
        try:
            return self._moved(transition, context, value, traceparent)
        except Exception as error:  # noqa: BLE001  (a value that cannot be recorded)
            return BodyFailure(error=error)

    async def _call(self, fire: Fire, context: MachineContext[Any]) -> tuple[Any, str]:
        around, transition, number = self._around, fire.transition, fire.attempts + 1
        with around.span("step", transition.name, number) as traceparent:
            around.enter_attempt(transition.name, number, context.key, traceparent)
            if not around.middleware:
                return await transition.function(self._machine, context, *fire.argument), traceparent
            value = await around.through(
                "step",
                transition.name,
                number,
                traceparent,
                fire.argument[0] if fire.argument else context.state,
                lambda: transition.function(self._machine, context, *fire.argument),
            )
            return value, traceparent

    def _moved(
        self, transition: Transition[Any], context: MachineContext[Any], value: Any, traceparent: str
    ) -> Moved:
        """Return what a body did. Raises PayloadError for what cannot be recorded, UsageError for a value
        nobody asked for.
        """
        result = NOTHING
        if transition.target == END:
            result = msgspec.Raw(self._definition.codecs.output.encode(value))
        elif value is not None:
            raise UsageError(
                f"{transition.where} returned {shown(value)}, but only a transition to END returns a value, "
                "the result of the flow; change ctx.state, or save a document"
            )
        documents, children = context.take()
        return Moved(
            state=self._definition.encode_state(context.state),
            documents={document_name(name): text for name, text in documents.items()},
            children=children,
            result=result,
            traceparent=traceparent,
        )
