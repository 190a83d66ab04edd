"""The table of what can be read and done. API, pages and `openapi.json` are made from it."""

from __future__ import annotations

from eventbus.dashboard.desk import (
    audit,
    edits,
    failures,
    history,
    jobs,
    operations,
    queues,
    schedules,
    search,
    server,
    workers,
)
from eventbus.dashboard.desk.events import catalog, emissions
from eventbus.dashboard.desk.flows import flow, graph, listing, orders
from eventbus.dashboard.desk.rows import Act, Read

READS: tuple[Read, ...] = (
    *queues.READS,
    *jobs.READS,
    *history.READS,
    *failures.READS,
    *operations.READS,
    *audit.READS,
    *catalog.READS,
    *workers.READS,
    *server.READS,
    *search.READS,
    *listing.READS,
    *flow.READS,
    *graph.READS,
    *schedules.READS,
)

ACTS: tuple[Act, ...] = (
    *queues.ACTS,
    *jobs.ACTS,
    *edits.ACTS,
    *operations.ACTS,
    *orders.ACTS,
    *emissions.ACTS,
    *schedules.ACTS,
)
