"""Checking a release against the flows in the server, before it is deployed: can its definitions go on with
them?

    durable function   its code is run against what the flow has recorded, without effects
                       (`functions.history_check`)
    state machine      it has the place where the flow stands, what is due or owed there, and what the flow
                       waits for
    graph, pipeline    it has the steps that the flow has recorded

What must always hold: nothing is done and nothing is recorded. Of ended flows only those of durable
functions are read: they are
examples for code; the others go on no more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import msgspec

from eventbus import DefinitionError, PayloadError, StoreCorrupt
from eventbus.lowlevel import JobClient
from workflows.client.histories import FlowRecord, histories_of, recorded_flows
from workflows.execution.graph_entries import find_lost_undo, misfit
from workflows.functions.definition import Durable
from workflows.functions.history_check import FlowHistory, check_history
from workflows.machines.definition import MachineDefinition
from workflows.machines.snapshot import ACCEPTS, STATE, Snapshot, obligations_in, read_children, read_snapshot
from workflows.machines.transition import END
from workflows.records.graph_history import read_graph
from workflows.records.ids import workflow_of
from workflows.registry import StepRegistry

Tell: TypeAlias = Callable[[str, str], None]
"""Called with what a flow has, and what the release has in its place."""


class Mismatch(msgspec.Struct, frozen=True):
    """One thing that a flow has, or has recorded, and that the release has not.

    `position` is that of a call of a durable function, or the place of a state machine; it is empty where
    there is none.
    """

    flow: str
    position: str
    recorded: str
    asked: str


class CheckedFlow(msgspec.Struct, frozen=True):
    """What the check of one flow came to. `damage` says why it cannot be read; `version` is one that the
    release does not have.
    """

    flow: str
    mismatches: list[Mismatch] = []
    damage: str = ""
    version: str = ""


async def check_release(registry: StepRegistry, jobs: JobClient) -> AsyncIterator[CheckedFlow]:
    """Yield what each flow of the workflows of a release comes to, nested ones too. Raises StoreError."""
    if names := {durable.name for durable in registry.durables}:
        async for history in histories_of(jobs, names, ended=True):
            if isinstance(history, FlowRecord):
                yield CheckedFlow(history.flow_id, damage=history.damage)
            elif (known := registry.durable(workflow_of(history.flow_id), history.version)) is not None:
                yield CheckedFlow(history.flow_id, await _check_function(known, history))
    others = {each.name for each in (*registry.machines, *registry)}
    if not others:
        return
    async for flow in recorded_flows(jobs, others):
        if flow.has_ended or flow.message.durable:
            continue
        try:
            if flow.damage:
                raise StoreCorrupt(flow.damage)
            yield await _check_open(registry, jobs, flow)
        except StoreCorrupt as error:
            yield CheckedFlow(flow.flow_id, damage=str(error))


async def _check_function(durable: Durable[Any, Any], history: FlowHistory) -> list[Mismatch]:
    try:
        error = await check_history(durable, history)
    except (PayloadError, DefinitionError) as unfit:
        return [Mismatch(history.flow_id, "", "its input", str(unfit))]
    if error is None:
        return []
    return [Mismatch(history.flow_id, error.position, error.recorded, error.asked or str(error))]


async def _check_open(registry: StepRegistry, jobs: JobClient, flow: FlowRecord) -> CheckedFlow:
    flow_id, name, version = flow.flow_id, flow.workflow, flow.message.version
    if flow.message.machine:
        machine = registry.machine(name, version or None)
        if machine is None:
            return CheckedFlow(flow_id, version=version)
        return CheckedFlow(flow_id, await _check_machine(registry, machine, jobs, flow_id))
    history = read_graph(flow.entries, flow.message)
    version = version or history.version
    if version and not registry.has(name, version=version):
        return CheckedFlow(flow_id, version=version)
    if not registry.has(name) or not history.is_local:
        return CheckedFlow(flow_id)
    workflow = registry.workflow(name, version or None)
    if told := misfit(history, workflow):
        return CheckedFlow(flow_id, [Mismatch(flow_id, "", told, "another definition")])
    if lost := find_lost_undo(history, workflow):
        return CheckedFlow(flow_id, [Mismatch(flow_id, lost, "its rollback", "no such rollback")])
    return CheckedFlow(flow_id)


async def _check_machine(
    registry: StepRegistry, machine: MachineDefinition, jobs: JobClient, flow_id: str
) -> list[Mismatch]:
    live = await jobs.lives(flow_id)
    snapshot = read_snapshot(flow_id, live)
    if snapshot is None:  # no worker has begun it
        return []
    place, found = snapshot.place, list[Mismatch]()

    def tell(recorded: str, asked: str) -> None:
        found.append(Mismatch(flow_id, place, recorded, asked))

    if place != END and place not in machine.out_of:
        tell(f"place {place!r}", "no such place")
    else:
        _check_place(machine, snapshot, live.get(ACCEPTS, ""), tell)
    for owed in obligations_in(flow_id, live):
        known = machine.transitions.get(owed.transition)
        if not owed.is_done and (known is None or known.undo is None):
            tell(f"the rollback of {owed.path}", "no such rollback" if known else "no such transition")
    for child in read_children(flow_id, live):
        if registry.find(child.workflow, child.version) is None:
            tell(f"child {child.id}", f"no version {child.version} of workflow {child.workflow}")
    try:
        machine.codecs.state.decode(live.get(STATE, "null"))
    except PayloadError as error:
        tell("its state", str(error))
    return found


def _check_place(machine: MachineDefinition, snapshot: Snapshot, accepts: str, tell: Tell) -> None:
    """Tell what a flow waits for at its place, and what is to be tried again there, if the release does not
    have it.
    """
    leaving = {each.name: each for each in machine.out_of.get(snapshot.place, ())}
    for name in accepts.split():
        bare = name.removeprefix("!")
        if not name.startswith("!!") and (bare not in leaving or not leaving[bare].waits):
            tell(f"trigger {bare!r}", "no such trigger at this place")
    trouble = snapshot.trouble
    if trouble is None:
        return
    known = machine.transitions.get(trouble.transition)
    if known is None or trouble.origin not in known.sources:
        tell(
            f"transition {trouble.transition!r}, which failed", f"no such transition from {trouble.origin!r}"
        )
