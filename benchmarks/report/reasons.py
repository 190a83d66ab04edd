"""Why a goal is not met, in words: shown beside it on the page.

The key is the goal's `work`, `figure` and `against`, as the page's table of goals has them. A
reason of a goal that is met is not shown.
"""

from __future__ import annotations

_SINGLE = "enqueue, single calls, 500 in flight"
_DRAIN = "drain, one worker, concurrency 100"
_REPLY = "request-reply, 100 in flight"
_ALONE = "request-reply, one at a time"
_WAITING = "with 1,000,000 jobs waiting in the queue (20 times --count): 1,000,000 waiting"
_TYPES = "with 200 event types, one worker for all: 200 types"
_EMITTERS = "with 50 emitters: providers in one process, which share their connections: 50 emitters, "
_SAME, _MORE = f"{_EMITTERS}as many in flight in all", f"{_EMITTERS}10 times in flight"
_BREADTH = "spread flows of 10 and of 1,000 steps side by side, between a first and a last, 2,000 in flight: "
_CALL = "the server's longest call, ms"

_FLOOR = "the floor keeps no records and gives no leases; a job costs two reads and two writes of its record"
_CACHES = (
    "a million records and a list of a million entries: lookups leave the caches of the CPU (our reading; "
    "not measured apart)"
)
_LUA = (
    "Lua: of a turn's time a sixth is commands, and the rest reads rows, records and holds, "
    "job by job. Next: fewer strings made for each job"
)
_SPREAD = "each job finds its queue empty: each add wakes the pool, each claim asks a queue for one job"
_LOAD = (
    "the library of functions is loaded once for a release and a server: 9 to 12 ms on a quiet machine, "
    "20 to 34 beside starting processes"
)
_SLOW_CLOCK = (
    "time on the clock, on a machine whose cores were slow in this run: 6 to 8 ms in the run of 2026-11-21"
)
_PYTHON = (
    "one worker process, whose core is full: the Python of a flow of 3 steps takes it 0.13 to 0.2 ms, and "
    "the server an eighth of BullMQ's CPU. Next: fewer awaits and callbacks for each step; a second worker "
    "on a core of its own"
)
_ONE_PROCESS = "all 50 emitters share one Python process and one core of two"
_SMALL = "each provider has a send buffer of its own, and hands over a few emissions at a time"

REASONS: dict[tuple[str, str, str], str] = {
    (
        "a signal to a sleeping flow, until the caller has its result, one at a time: signal",
        "p50, ms",
        "request-reply",
    ): "a turn more than a request: what the signal did is recorded before the code goes on. "
    "Both processes have slept before each signal, and not before each request",
    **{
        (f"{what} of 3 steps, one after the other, {count} in flight", "flows/s", "BullMQ"): _PYTHON
        for what in ("flow", "a durable function")
        for count in (50, 100)
    },
    ("flow of 12 steps, 1, then 10 side by side, then 1, 50 in flight", "flows/s", "BullMQ"): _PYTHON,
    ("the flow of 12 steps, spread: a job for each step", "flows/s", "BullMQ"): (
        "a job for each step, most of it Lua; emitter, worker and server share two cores"
    ),
    (
        "the same, spread: a job for each step",
        "flows/s",
        "BullMQ",
    ): "four jobs one after the other, each a claim, a record, a settle and the hand-over to the next; "
    "most of it Lua; emitter, worker and server share two cores",
    (
        _SINGLE,
        "jobs/s",
        "BullMQ",
    ): "bound by the emitter's Python: for each call an id, a message, a future and an "
    "await, and of that a quarter is the event loop's own",
    (_DRAIN, "jobs/s", "BullMQ"): f"bound by the server, and that by {_LUA}",
    (_DRAIN, "jobs/s", "floor"): _FLOOR,
    (
        _REPLY,
        "jobs/s",
        "BullMQ",
    ): "three processes share two cores, and the emitter's and the worker's Python takes "
    "more of them than the server",
    (
        _REPLY,
        "server CPU",
        "BullMQ",
    ): f"{_LUA}; with 100 in flight a turn has few jobs to share its fixed part",
    (_REPLY, "jobs/s", "floor"): _FLOOR,
    (
        _ALONE,
        "p50",
        "BullMQ",
    ): "two script calls and four messages one after the other, between three processes that "
    "each wake up for it; the floor has the same four messages without scripts, and is at 0.46 itself",
    ("the server's CPU for each plain job: add in bulk, claim and settle", "all of it, µs/job", ""): _LUA,
    ("with 1,000,000 jobs waiting in the queue (20 times --count): empty server", _CALL, ""): _LOAD,
    (
        _WAITING,
        _CALL,
        "",
    ): "a few of 2,000 turns, where one MGET of 100 records takes 5 ms of the clock: memory that was "
    "not used for a while (our reading; the commands are the same as in the others, which take 1 ms)",
    (_BREADTH + "10 side by side", _CALL, ""): _SLOW_CLOCK,
    (_BREADTH + "1,000 side by side", _CALL, ""): _SLOW_CLOCK,
    (
        "a worker's own CPU for each no-op job, in a drain",
        "process, user, µs/job",
        "",
    ): "reading a claim, a task with "
    "its context and the settle's row; the machine's cores were slow in this run",
    (
        "`eventbus demo`: from its start to its first result, second run",
        "s",
        "",
    ): "imports of Python, and a server that starts; the machine's cores were slow in this run",
    (_WAITING, "enqueue, µs/job", "empty server"): _CACHES,
    (_WAITING, "enqueue, server CPU, µs/job", "empty server"): _CACHES,
    (_WAITING, "drain, µs/job", "empty server"): _CACHES,
    (_WAITING, "drain, server CPU, µs/job", "empty server"): _CACHES,
    (_TYPES, "enqueue, server CPU, µs/job", "1 type"): "each queue of a call takes a command for itself",
    (_TYPES, "request-reply, µs/job", "1 type"): _SPREAD,
    (_TYPES, "request-reply, server CPU, µs/job", "1 type"): _SPREAD,
    (_SAME, "enqueue, µs/job", "1 emitter"): _SMALL,
    (_SAME, "request-reply, µs/job", "1 emitter"): _SMALL,
    (_MORE, "enqueue, µs/job", "1 emitter"): f"{_ONE_PROCESS}; the server's cost is flat",
    (_MORE, "request-reply, µs/job", "1 emitter"): _ONE_PROCESS,
}
