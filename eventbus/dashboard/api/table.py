"""The table of what can be read and done. API, pages and `openapi.json` are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from eventbus.admin.audit import AuditPage
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
from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.events import catalog, emissions
from eventbus.dashboard.desk.flows import flow, graph, listing, orders
from eventbus.dashboard.desk.queue_views import QueueList, QueueView
from eventbus.dashboard.entry.gate import Caller

__all__ = ["ACTS", "READS", "Act", "Read"]


class Read(NamedTuple):
    """A GET route: `read` answers with an `answer`, `query` is the struct of its query."""

    path: str
    summary: str
    query: type[Any]
    answer: type[Any]
    read: Callable[[Desk, Caller, dict[str, str], Any], Awaitable[Any]]


class Act(NamedTuple):
    """A route that changes something: `act` takes an `order`.

    The API has it at `path` with `method`. Pages post a form to `form`, unless it is empty, and are sent back
    to the page of the target. The name of the target must be typed into a form that `is_final`. What an
    action that is not `is_kept` answers is never kept for a repeat of it: it changes nothing, and shows what
    is hidden.
    """

    method: str
    path: str
    form: str
    summary: str
    order: type[Any]
    act: Callable[[Desk, Caller, dict[str, str], Any], Awaitable[ActionResult]]
    is_final: bool = False
    is_kept: bool = True


READS: tuple[Read, ...] = (
    Read("/queues", "The queues that are known.", queues.NoQuery, QueueList, queues.read_queues),
    Read("/queues/{queue}", "One queue.", queues.NoQuery, QueueView, queues.read_queue),
    Read(
        "/queues/{queue}/jobs",
        "A page of the jobs of a queue in one state, or in several: `state=failed&state=cancelled`.",
        jobs.JobsQuery,
        jobs.JobPage,
        jobs.read_jobs,
    ),
    Read(
        "/queues/{queue}/history",
        "What became of the jobs of a queue, by minute or hour.",
        history.HistoryQuery,
        history.HistoryView,
        history.read_history,
    ),
    Read("/jobs/{job}", "One job, and why it is in its state.", queues.NoQuery, jobs.JobView, jobs.read_job),
    Read(
        "/failures",
        "The failed jobs by their error.",
        queues.NoQuery,
        failures.FailureList,
        failures.read_failures,
    ),
    Read(
        "/operations",
        "The newest bulk operations.",
        queues.NoQuery,
        operations.OperationList,
        operations.read_operations,
    ),
    Read(
        "/operations/{operation}",
        "How far one bulk operation is.",
        queues.NoQuery,
        operations.OperationView,
        operations.read_operation,
    ),
    Read("/audit", "Who did what, or was refused.", audit.AuditQuery, AuditPage, audit.read_audit),
    Read("/events", "The events and their groups.", queues.NoQuery, catalog.EventList, catalog.read_events),
    Read(
        "/events/{event}",
        "One event, and the schemas of its payload and result.",
        queues.NoQuery,
        catalog.EventView,
        catalog.read_event,
    ),
    Read("/workers", "The workers.", queues.NoQuery, workers.WorkerList, workers.read_workers),
    Read("/server", "The server, and its checks.", queues.NoQuery, server.ServerView, server.read_server),
    Read(
        "/search",
        "Jobs and queues by a name, a key, or a field.",
        search.SearchQuery,
        search.Found,
        search.search,
    ),
    Read("/flows", "A page of flows.", listing.FlowsQuery, listing.FlowList, listing.read_flows),
    Read("/flows/{flow}", "One flow with its steps.", queues.NoQuery, flow.FlowView, flow.read_flow),
    Read(
        "/flows/{flow}/graph",
        "What follows what in a flow.",
        graph.GraphQuery,
        graph.GraphView,
        graph.read_graph,
    ),
    Read(
        "/workflows",
        "The versions of workflows: open flows, and workers that know them.",
        queues.NoQuery,
        listing.VersionList,
        listing.read_versions,
    ),
    Read(
        "/schedules",
        "A page of the schedules.",
        schedules.SchedulesQuery,
        schedules.ScheduleList,
        schedules.read_schedules,
    ),
    Read(
        "/schedules/{schedule}",
        "One schedule, and its next slots.",
        queues.NoQuery,
        schedules.ScheduleView,
        schedules.read_schedule,
    ),
)


def _post(path: str, summary: str, order: type[Any], act: Any) -> Act:
    return Act("POST", path, path, summary, order, act)


ACTS: tuple[Act, ...] = (
    _post("/queues/{queue}/pause", "Pause a queue.", queues.PauseOrder, queues.pause_queue),
    _post("/queues/{queue}/resume", "Resume a queue.", queues.ResumeOrder, queues.resume_queue),
    _post("/queues/{queue}/limits", "Set a queue's limit.", queues.LimitOrder, queues.limit_queue),
    _post("/jobs/{job}/cancel", "Cancel a job.", jobs.CancelOrder, jobs.cancel_job),
    _post("/jobs/{job}/retry", "Let a job run again that has ended.", jobs.RetryJobOrder, jobs.retry_job),
    Act(
        "DELETE",
        "/jobs/{job}",
        "/jobs/{job}/remove",
        "Remove a job that nobody runs.",
        jobs.RemoveJobOrder,
        jobs.remove_job,
        is_final=True,
    ),
    _post(
        "/failures/{failure}/retry",
        "Begin to let all jobs of a group run again.",
        operations.RetryGroupOrder,
        operations.retry_group,
    ),
    _post(
        "/queues/{queue}/operations",
        "Begin to retry, cancel or promote many jobs of a queue.",
        operations.OperationOrder,
        operations.begin_operation,
    ),
    Act(
        "POST",
        "/queues/{queue}/clean",
        "/queues/{queue}/clean",
        "Begin to remove many jobs of a queue.",
        operations.CleanOrder,
        operations.clean_queue,
        is_final=True,
    ),
    _post(
        "/operations/{operation}/stop",
        "Let a bulk operation do no more.",
        operations.StopOrder,
        operations.stop_operation,
    ),
    _post("/jobs/{job}/promote", "Make a delayed job due now.", jobs.PromoteOrder, jobs.promote_job),
    _post("/jobs/{job}/delay", "Make a job that waits due later.", jobs.DelayOrder, jobs.delay_job),
    _post(
        "/jobs/{job}/priority", "Give a job that waits a priority.", jobs.PriorityOrder, jobs.prioritize_job
    ),
    Act(
        "PATCH",
        "/jobs/{job}",
        "/jobs/{job}/edit",
        "Replace the payload of a job that waits; If-Match is its revision.",
        edits.EditOrder,
        edits.edit_job,
    ),
    Act(
        "POST",
        "/jobs/{job}/reveal",
        "/jobs/{job}/reveal",
        "Return what is redacted of a job.",
        jobs.RevealOrder,
        jobs.reveal_job,
        is_kept=False,
    ),
    _post(
        "/flows/{flow}/cancel", "Cancel a flow, with rollback.", orders.CancelFlowOrder, orders.cancel_flow
    ),
    _post("/flows/{flow}/retry", "Run a flow again that has ended.", orders.RetryOrder, orders.retry_flow),
    _post("/flows/{flow}/signals/{signal}", "Send a flow a signal.", orders.SignalOrder, orders.signal_flow),
    Act(
        "POST",
        "/emissions",
        "",
        "Emit an event; with `wait` the answer has what became of it.",
        emissions.EmitOrder,
        emissions.emit_event,
    ),
    _post(
        "/schedules/{schedule}/pause",
        "Pause a schedule.",
        schedules.PauseScheduleOrder,
        schedules.pause_schedule,
    ),
    _post(
        "/schedules/{schedule}/resume",
        "Resume a schedule.",
        schedules.ScheduleOrder,
        schedules.resume_schedule,
    ),
    _post(
        "/schedules/{schedule}/run",
        "Make a job of a schedule now.",
        schedules.ScheduleOrder,
        schedules.run_schedule,
    ),
    Act(
        "DELETE",
        "/schedules/{schedule}",
        "/schedules/{schedule}/remove",
        "Remove a schedule.",
        schedules.ScheduleOrder,
        schedules.remove_schedule,
        is_final=True,
    ),
)
