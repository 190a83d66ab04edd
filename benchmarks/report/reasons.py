"""Why a goal is not met, in words: shown beside it on the page.

The key is the goal's `work`, `figure` and `against`, as the page's table of goals has them. A
reason of a goal that is met is not shown.
"""

from __future__ import annotations

_SINGLE = "enqueue, single calls, 500 in flight"
_BULK = "enqueue, one bulk call"
_DRAIN = "drain, one worker, concurrency 100"
_REPLY = "request-reply, 100 in flight"
_ALONE = "request-reply, one at a time"
_WAITING = "with 1,000,000 jobs waiting in the queue (20 times --count): 1,000,000 waiting"
_TYPES = "with 200 event types, one worker for all: 200 types"
_EMITTERS = "with 50 emitters: providers in one process, which share their connections: 50 emitters, "
_SAME, _MORE = f"{_EMITTERS}as many in flight in all", f"{_EMITTERS}10 times in flight"
_MEMORY = "memory in the server for each kept finished job, awaited: payload of 1,000 bytes, result of 982"

_FLOOR = "the floor keeps no records and gives no leases; a job costs two reads and two writes of its record"
_CACHES = (
    "a million records and places in one sorted set: lookups leave the caches of the CPU "
    "(our reading; not measured apart)"
)
_SPREAD = "each job finds its queue empty: each add wakes the pool, each claim asks a queue for one job"
_ONE_PROCESS = "all 50 emitters share one Python process and one core of two"
_SMALL = "each provider has a send buffer of its own, and hands over a few emissions at a time"

REASONS: dict[tuple[str, str, str], str] = {
    (
        "flow of 3 steps, one after the other, 50 in flight",
        "flows/s",
        "BullMQ",
    ): "four jobs one after the other, each a claim, a record, a settle and the hand-over to the next: 232 to 290 µs "
    "of server CPU a flow (BullMQ: 455 to 617), most of it Lua calling 62 commands; emitter, worker and server share "
    "two cores",
    (_SINGLE, "jobs/s", "BullMQ"): "bound by the emitter: 8 to 9 µs of Python for each call and its await",
    (_BULK, "jobs/s", "BullMQ"): "bound by the emitter's process; met without the AOF",
    (
        _DRAIN,
        "jobs/s",
        "BullMQ",
    ): "bound by the server: 17 to 20 µs of its CPU for each job, most of it Lua; BullMQ's takes 47 to 57",
    (_DRAIN, "jobs/s", "floor"): _FLOOR,
    (
        _REPLY,
        "jobs/s",
        "BullMQ",
    ): "met without the AOF; with it the server takes 33.8 instead of 25.7 µs a job, and three processes share two cores",
    (_REPLY, "jobs/s", "floor"): _FLOOR,
    (
        _ALONE,
        "p50",
        "BullMQ",
    ): "three script calls and six messages one after the other; the floor, with four messages and no script, is at 0.43 itself",
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
    (
        _MEMORY,
        "over payload and result, bytes/job",
        "",
    ): "payload and result have keys of their own, each with a name, an entry and rounded sizes",
}
