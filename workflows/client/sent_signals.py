"""Sending signals and triggers to flows by their ids: checked as far as the definition is known, here or by
the server.

    a signal, or its name, and a value
        -- checked by the definition given, else by those registered here, else by what workers told --> sent
        -- or refused by one of these, and not sent

What must always hold: nobody sends a flow what its definition refuses, by whatever way it is sent; what is
sent is what arrives. A signal has its id before it is first sent, so that the server takes a repeat for the
same one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from eventbus import DefinitionError, PayloadError, SignalRefused, UnknownJob
from eventbus.lowlevel import Codec, Duration, JobClient, clock, shown
from workflows.definition.codecs import MAX_VALUE
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.signal import Signal, check_known, signal_by
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable
from workflows.graphs.graph import Graph
from workflows.machines.choosing import MOVE, RETRY, trigger_name
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import ACCEPTS, NAMES, read_snapshot
from workflows.machines.transition import END, Transition
from workflows.machines.triggers import MoveTo
from workflows.records.checkpoints import GRAPH
from workflows.records.ids import check_flow_id, workflow_of
from workflows.records.records import read_message_of
from workflows.registry import StepRegistry

_FindGraph: TypeAlias = Callable[..., Awaitable[Graph | None]]

_MACHINE = "takes triggers and no signals; use trigger({name!r}, ...)"
_REFUSALS = {"ended": "the flow has ended", "stopping": "the flow is being cancelled or rolled back"}


class SignalSender:
    """Sends signals and triggers to the flows of one provider. `call_timeout` is how long all that is asked
    may take.
    """

    def __init__(self, jobs: JobClient, registry: StepRegistry, find_graph: _FindGraph) -> None:
        """`find_graph(workflow, version, call_timeout=...)` returns the graph that a worker told; None
        without one.
        """
        self._jobs = jobs
        self._registry = registry
        self._find_graph = find_graph

    async def send(
        self,
        flow_id: str,
        signal: Signal[Any] | str,
        payload: Any,
        *,
        definition: AnyDefinition | None = None,
        signal_id: str = "",
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a signal with a payload of its type; `definition` is that of the flow, if it is given. Raises
        as `FlowHandle.signal`.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        name = signal_by(signal).name
        known = _known(self._registry, workflow_of(flow_id), definition)
        declared = None
        if known and isinstance(known[0], MachineDefinition):
            raise DefinitionError(f"{known[0].where} {_MACHINE.format(name=name)}")
        if known:
            declared = _receiver(known, name)
        elif await self._check_told(flow_id, name, deadline):
            raise DefinitionError(f"flow {flow_id} is of a state machine, which {_MACHINE.format(name=name)}")
        # What a function declares counts; a graph judges a signal of another type where it comes to its wait.
        is_given = isinstance(signal, Signal) and not (known and isinstance(known[0], Durable))
        text = (signal_by(signal) if is_given or declared is None else declared).encode(payload)
        await self._jobs.signal(flow_id, name, text, signal=signal_id, call_timeout=_left(deadline))

    async def trigger(
        self,
        flow_id: str,
        transition: Transition[Any] | str,
        payload: Any,
        *,
        definition: AnyDefinition | None = None,
        trigger_id: str = "",
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a trigger with a payload of its type; `definition` is that of the flow, if it is given. Raises
        as `FlowHandle.trigger`.
        """
        name = transition.name if isinstance(transition, Transition) else transition
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a transition or its name, got: {shown(transition)}")
        known = transition if isinstance(transition, Transition) else None
        if isinstance(definition, MachineDefinition):
            known = definition.find(name)
        text = _any(name).encode(payload).decode() if known is None else known.encode(payload)
        await send_trigger_text(
            self._jobs, flow_id, name, text, trigger_id=trigger_id, call_timeout=call_timeout
        )

    async def send_json(
        self,
        flow_id: str,
        name: Signal[Any] | str,
        payload: Any,
        *,
        signal_id: str = "",
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a signal with a payload of JSON, or of its type if it is given as itself; to a state machine a
        trigger. Raises as `WorkflowProvider.signal`.
        """
        if isinstance(name, Signal):
            check_flow_id(flow_id)
            await self.send(flow_id, name, payload, signal_id=signal_id, call_timeout=call_timeout)
            return
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"expected a signal or its name, got: {shown(name)}")
        deadline = self._jobs.settings.deadline(call_timeout)
        known = _known(self._registry, workflow_of(check_flow_id(flow_id)))
        if known:
            is_machine = isinstance(known[0], MachineDefinition)
            receiver = _receiver(known, name)
        else:
            is_machine = await self._check_told(flow_id, name, deadline)
            receiver = None
        text = _encode(name, payload, receiver or (None if is_machine else signal_by(name)))
        if is_machine:
            await send_trigger_text(
                self._jobs, flow_id, name, text, trigger_id=signal_id, call_timeout=_left(deadline)
            )
        else:
            await self._jobs.signal(flow_id, name, text, signal=signal_id, call_timeout=_left(deadline))

    async def _check_told(self, flow_id: str, name: str, deadline: float) -> bool:
        """Ask the server about a flow whose definition nobody has here; return whether it is that of a state
        machine.

        Raises DefinitionError for a signal that its version does not declare, as far as a worker has told;
        UnknownJob, StoreError.
        """
        page = await self._jobs.look(flow_id, limit=0, deadline=deadline)
        if not page.root:
            raise UnknownJob(flow_id)
        message = read_message_of(flow_id, page.root.get("body", ""))
        if message.machine:
            return True
        workflow = workflow_of(flow_id)
        version = message.version or page.saved.get(GRAPH, "")
        graph = await self._find_graph(workflow, version, call_timeout=_left(deadline)) if version else None
        names = None if graph is None else graph.signals
        if names is not None:
            check_known(name, names, f"workflow {workflow!r} in version {version!r}")
        return False


def check_json(registry: StepRegistry, workflow: str, name: str, payload: Any) -> bool:
    """Check a signal, or a trigger, by its name and a payload of JSON; return False if the workflow is not
    registered.

    Raises DefinitionError for one that the workflow does not have, PayloadError.
    """
    known = _known(registry, workflow)
    if known:
        _encode(name, payload, _receiver(known, name) or signal_by(name))
    return bool(known)


def _known(registry: StepRegistry, workflow: str, given: AnyDefinition | None = None) -> list[AnyDefinition]:
    """Return the definitions of a workflow that count here: of a function or a machine the one `given`, or
    registered last.
    """
    if isinstance(given, Workflow) or given is None:
        last = registry.durable(workflow) or registry.machine(workflow)
        if last is not None:
            return [last]
        known = [registry.workflow(workflow, each) for each in registry.versions(workflow)]
        if given is not None and given not in known:
            known.append(given)
        return [each for each in known if each.steps]  # without steps it is only executed here
    return [given]


def _receiver(known: Sequence[AnyDefinition], name: str) -> Signal[Any] | Transition[Any] | None:
    """Return what takes a message of this name: a signal as it is declared, or a transition; None if a
    function declares none.

    Raises DefinitionError.
    """
    last = known[0]
    if isinstance(last, MachineDefinition):
        transition = last.find(name)
        if not transition.waits:
            raise DefinitionError(f"{transition.where} waits for no trigger: it fires by itself")
        return transition
    if isinstance(last, Durable):
        return last.check_signal(name)
    found: dict[str, Signal[Any]] = {}
    for each in known:
        found = {**found, **each.signals} if isinstance(each, Workflow) else found
    check_known(name, found, f"workflow {last.name!r}")
    return found[name]


def _any(name: str) -> Codec:
    """Return the codec of a payload of JSON, for what has this name."""
    return Codec(Any, role="payload", owner=name, max_bytes=MAX_VALUE)


def _encode(name: str, payload: Any, receiver: Signal[Any] | Transition[Any] | None) -> str:
    """Return a payload as JSON text: that of a value of JSON, or of a value of the type that it goes to.
    Raises PayloadError.
    """
    try:
        text = _any(name).encode(payload).decode()
    except PayloadError:
        if receiver is None:
            raise
        return receiver.encode(payload)
    if receiver is None:
        return text
    try:
        receiver.decode(text)
    except PayloadError as error:
        what = f"signal {name!r}" if isinstance(receiver, Signal) else receiver.where
        raise PayloadError(
            f"the payload of {what} failed its validation: {error}",
            event=name,
            path=error.path,
            role="payload",
        ) from error
    return text


def _left(deadline: float) -> float:
    return max(deadline - clock.monotonic(), 0.001)


async def send_trigger_text(
    jobs: JobClient,
    flow_id: str,
    transition: str,
    payload: str,
    *,
    trigger_id: str = "",
    call_timeout: Duration | None = None,
) -> None:
    """Send a trigger whose payload is JSON text already. Raises SignalRefused, with what the machine accepts
    instead.
    """
    try:
        await jobs.signal(
            flow_id, trigger_name(transition), payload, signal=trigger_id, call_timeout=call_timeout
        )
    except SignalRefused as error:
        told = _REFUSALS.get(error.reason, "")
        if error.reason == "unwanted":
            told = await _tell_place(jobs, flow_id, transition)
        raise SignalRefused(flow_id, transition, error.reason, told, is_trigger=True) from None


async def send_retry(jobs: JobClient, flow_id: str, target: str | None) -> bool:
    """Have a machine that has not ended run again what failed, or move to `target`; return False if nothing
    failed there.

    Raises SignalRefused for one that has ended meanwhile, or that is being stopped; UnknownJob, StoreError.
    """
    try:
        if target is None:
            await jobs.signal(flow_id, RETRY)
        else:
            await jobs.signal(flow_id, MOVE, msgspec.json.encode(MoveTo(target)).decode())
    except SignalRefused as error:
        if error.reason == "unwanted":
            return False
        name = "retry" if target is None else f"to move to {target}"
        raise SignalRefused(
            flow_id, name, error.reason, _REFUSALS.get(error.reason, ""), is_trigger=True
        ) from None
    return True


async def _tell_place(jobs: JobClient, flow_id: str, transition: str) -> str:
    """Tell where the machine is, which may have moved since it refused."""
    live = await jobs.lives(flow_id, NAMES)
    snapshot = read_snapshot(flow_id, live)
    if snapshot is None:
        return f"no worker has begun it yet, or workflow {workflow_of(flow_id)!r} is no state machine"
    offered = [name.removeprefix("!") for name in live.get(ACCEPTS, "").split() if not name.startswith("!!")]
    place = "END" if snapshot.place == END else repr(snapshot.place)
    accepted = f"accepts {', '.join(offered)}" if offered else "accepts no trigger now"
    if transition in offered:
        return (
            "the machine accepted none at that moment, because it had not begun or just moved; it is at "
            f"place {place} now, which {accepted}: send it again"
        )
    return f"the machine is at place {place}, which {accepted}"
