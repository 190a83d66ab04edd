"""Looking at many flows, at the graphs of flows and definitions, and at what flows wait for: a part of a
provider of workflows.

What must always hold: nothing here changes a flow but `signal`; what is read of many flows is bounded, and
says if it was cut. The graph of a version is that of the definition that is registered here, otherwise the
one that a worker told at its start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from eventbus import EventProvider
from eventbus.lowlevel import Duration, JobClient, clock
from workflows.client.definitions import Definitions
from workflows.client.flow_lister import FlowLister
from workflows.client.histories import read_record
from workflows.client.inspection import FlowInspector
from workflows.client.open_waits import open_waits
from workflows.client.sent_signals import SignalSender
from workflows.definition.signal import Signal
from workflows.graphs.folding import fold
from workflows.graphs.graph import Graph, decode_graph
from workflows.graphs.runs import graph_of_run, has_positions
from workflows.machines.definition import is_by_places
from workflows.records.ids import check_flow_id, flow_queue
from workflows.records.report import FlowPage, FlowSummary, FlowTree, FlowVersion, FlowWait
from workflows.registry import StepRegistry

_MOST = 500
"""How many flows one page looks at."""

_MOST_OPEN = 1000
"""How many open flows of a workflow are counted by version."""

_MOST_GRAPHS = 200
"""How many graphs of other programs are kept here; a version never changes."""


class FlowLooks:
    """The part of a provider of workflows that looks."""

    provider: EventProvider
    _jobs: JobClient
    _registry: StepRegistry
    _inspection: FlowInspector
    _lists: FlowLister
    _graphs: dict[tuple[str, str], Graph]
    _definitions: Definitions
    _sender: SignalSender

    async def flows(
        self,
        workflow: str | None = None,
        *,
        state: str | None = None,
        limit: int = 50,
        call_timeout: Duration | None = None,
    ) -> list[FlowSummary]:
        """Return the newest flows, at most `limit`, of one workflow or of all; filter by a flow's `state`.

        Raises StoreError.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        return await self._lists.newest(workflow, state=state, limit=limit, deadline=deadline)

    async def flow_page(
        self,
        workflow: str | None = None,
        *,
        state: str | None = None,
        limit: int = 50,
        cursor: str = "",
        call_timeout: Duration | None = None,
    ) -> FlowPage:
        """Return a page of all flows, or of those of one workflow or in one `state`; with a `cursor` the page
        behind another one.

        Open flows come first, then ended ones; the newest first in both. All pages together have each flow
        once; one that ends meanwhile may come once more, as it is then. With a filter a page has looked at
        500 flows at most: it may have none, and a cursor. Raises DefinitionError for a bad cursor,
        StoreError.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        return await self._lists.page(
            workflow, state=state, limit=limit, cursor=cursor, most=_MOST, deadline=deadline
        )

    async def graph(
        self,
        flow_id: str,
        *,
        tree: FlowTree | None = None,
        folded: bool = True,
        call_timeout: Duration | None = None,
    ) -> Graph:
        """Return the graph of a flow with the states of its parts.

        What follows what is known of workflows that are registered here, or that a worker served within 90
        days; otherwise the graph has no edges, and says so. That of a durable function has the calls that it
        has recorded, and that of a state machine its places, with its state at the one where it stands.
        `folded`: more than twelve parts between the same neighbours are one node, and there are 300 at most.
        `tree` is the flow, if it has been read. Raises UnknownJob, StoreError.
        """
        found = tree or await self._inspection.look(
            self._definitions.find_codecs, call_timeout=call_timeout
        ).tree(check_flow_id(flow_id))
        report = found.report
        known = None
        if not has_positions(report):
            version = report.version or None
            known = await self.definition(report.workflow, version, call_timeout=call_timeout)
        graph = graph_of_run(found, known)
        return fold(graph) if folded else graph

    async def definition(
        self, workflow: str, version: str | None = None, *, call_timeout: Duration | None = None
    ) -> Graph | None:
        """Return the graph of a workflow in a version, by default the one registered last; None if nobody has
        told it.
        """
        if (known := self._registry.graph(workflow, version)) is not None:
            return known
        if version is None:
            return None
        place = (workflow, version)
        if place not in self._graphs or is_by_places(version):  # releases differ, and have one version
            text = await self._jobs.definition(flow_queue(workflow), version, call_timeout=call_timeout)
            if (told := decode_graph(text)) is None:
                return None
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.clear()
            self._graphs[place] = told
        return self._graphs[place]

    async def waits(self, flow_id: str, *, call_timeout: Duration | None = None) -> list[FlowWait]:
        """Return what an open flow waits for, the oldest wait first; nothing if it does not wait. Raises
        UnknownJob, StoreError.
        """
        async with asyncio.timeout(self._jobs.settings.deadline(call_timeout) - clock.monotonic()):
            record = await read_record(self._jobs, check_flow_id(flow_id))
            found = await open_waits(self._jobs, record)
        return [
            FlowWait(
                place=entry.place,
                signal=entry.name if entry.kind == "wait" else "",
                since_ms=entry.started_ms,
                until_ms=entry.due_ms,
            )
            for entry in found
            if entry.kind != "failed"
        ]

    async def signal(
        self,
        flow_id: str,
        name: Signal[Any] | str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Send a flow a signal by its name, with a payload of JSON, or by itself, with one of its type.

        Name and payload are checked before as there: by the definition that is registered here, else the name
        by what a worker has told of the flow's version. A value that JSON would change, such as NaN, a set or
        a dict with keys that are no text, is refused, unless it is one of the type that is declared here.
        Return once it is recorded; the flow keeps it until it waits for it. To a state machine it is the
        trigger of a transition, which its place accepts now, or refuses. `signal_id` is that of
        `FlowHandle.signal`, or the `trigger_id`. Raises DefinitionError, PayloadError, SignalRefused,
        UnknownJob, StoreError.
        """
        await self._sender.send_json(
            flow_id, name, payload, signal_id=signal_id or "", call_timeout=call_timeout
        )

    async def versions(self, *, call_timeout: Duration | None = None) -> list[FlowVersion]:
        """Return each version of each workflow that has open flows or a live worker, with how many of both.

        Of a workflow's open flows 1,000 are looked at, the newest. Raises StoreError.
        """
        deadline = self._jobs.settings.deadline(call_timeout)
        workers: Counter[tuple[str, str]] = Counter()
        by_places: Counter[str] = Counter()  # workers with a machine without versions of its own
        newest: set[tuple[str, str]] = set()
        left = deadline - clock.monotonic()
        for worker in await self.provider.inspector.within(max(left, 0.001)).workers.list():
            for queue, versions in worker.versions.items():
                name = queue.removeprefix(flow_queue(""))
                workers.update((name, version) for version in versions)
                by_places[name] += any(map(is_by_places, versions))
                newest.update((name, version) for version in versions[-1:])
        opened = await self._lists.open_versions(most=_MOST_OPEN, deadline=deadline)
        return [
            FlowVersion(
                workflow=place[0],
                version=place[1],
                open=opened.counts[place],
                workers=by_places[place[0]] if is_by_places(place[1]) else workers[place],
                is_newest=place in newest,
                is_exact=place[0] not in opened.cut,
            )
            for place in sorted({*workers, *opened.counts})
        ]
