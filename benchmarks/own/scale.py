"""Does a job's cost stay flat, and each call short? With many jobs waiting, many event types, many
emitters.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.own.lab import Lab, cost
from benchmarks.own.row import Column, Limit, flat_costs

_ENQUEUE = (Column("enqueue_us", "enqueue, µs/job"), Column("enqueue_cpu_us", "its server CPU, µs/job"))
_DRAIN = (Column("drain_us", "drain, µs/job"), Column("drain_cpu_us", "its server CPU, µs/job"))
_REPLY = (Column("reply_us", "request-reply, µs/job"), Column("reply_cpu_us", "its server CPU, µs/job"))

_LONGEST = Column("longest_ms", "the server's longest call, ms")
_LONGEST_MS = 10.0

_IN_FLIGHT = 500
_REPLIES_IN_FLIGHT = 100
_REPLY_SHARE = 0.4


class Waiting:
    """Enqueue to and drain from a queue in which very many jobs wait."""

    name = "waiting"
    title = "with 1,000,000 jobs waiting in the queue (20 times --count)"
    columns = (Column("fill_per_second", "bulk fill, jobs/s"), *_ENQUEUE, *_DRAIN, _LONGEST)
    variants = ("empty server", "1,000,000 waiting")
    limits = (
        *flat_costs(variants[1], "enqueue_us", "enqueue_cpu_us", "drain_us", "drain_cpu_us"),
        *(Limit(_LONGEST.field, variant, _LONGEST_MS) for variant in variants),
    )
    most_rounds = 2

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure without, then with."""
        empty, full = self.variants
        lab.server.empty()
        with lab.server.watched() as calls:
            yield empty, cost("enqueue", lab.emit("enqueue", lab.count, in_flight=_IN_FLIGHT))
            lab.server.empty()
            yield empty, {"fill_per_second": lab.fill(lab.count).per_second}
            yield empty, cost("drain", lab.drain(lab.count))
        yield empty, {_LONGEST.field: calls.longest_ms}
        lab.server.empty()
        with lab.server.watched() as calls:
            yield full, {"fill_per_second": lab.fill(lab.count * 20).per_second}
            yield full, cost("enqueue", lab.emit("enqueue", lab.count, in_flight=_IN_FLIGHT))
            yield full, cost("drain", lab.drain(lab.count))
        yield full, {_LONGEST.field: calls.longest_ms}
        lab.server.empty()


class Cancels:
    """Cancel very many waiting jobs, one job a call, as when a tenant leaves."""

    name = "cancels"
    title = "a storm of cancels: 50,000 jobs (--count), 500 calls in flight"
    columns = (
        Column("cancel_us", "cancel, µs/job"),
        Column("cancel_cpu_us", "its server CPU, µs/job"),
        _LONGEST,
    )
    variants = ("50,000 waiting", "1,000,000 waiting")
    limits = (
        *flat_costs(variants[1], "cancel_us", "cancel_cpu_us"),
        *(Limit(_LONGEST.field, variant, _LONGEST_MS) for variant in variants),
    )
    most_rounds = 1

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Cancel as many jobs of a short queue and of a long one."""
        for variant, times in zip(self.variants, (1, 20), strict=True):
            lab.server.empty()
            if times > 1:
                lab.fill(lab.count * (times - 1))
            with lab.server.watched() as calls:
                line = lab.emit("cancel", lab.count, in_flight=_IN_FLIGHT)
            yield variant, cost("cancel", line) | {_LONGEST.field: calls.longest_ms}
        lab.server.empty()


class Types:
    """Spread the same jobs over many event types, all served by one worker."""

    name = "types"
    title = "with 200 event types, one worker for all"
    columns = (*_ENQUEUE, *_DRAIN, *_REPLY)
    variants = ("1 type", "200 types")
    limits = flat_costs("200 types", *(column.field for column in columns))
    most_rounds = 2

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure one, then many."""
        for variant in self.variants:
            types = int(variant.split()[0])
            serves = f"noop:{types}"
            lab.server.empty()
            yield variant, cost("enqueue", lab.emit("enqueue", lab.count, in_flight=_IN_FLIGHT, types=types))
            lab.server.empty()
            lab.fill(lab.count, types=types)
            yield variant, cost("drain", lab.drain(lab.count, serves))
            lab.server.empty()
            with lab.worker(serves) as worker:
                count = int(lab.count * _REPLY_SHARE)
                line = lab.emit("reply", count, worker=worker, in_flight=_REPLIES_IN_FLIGHT, types=types)
            yield variant, cost("reply", line)


class Emitters:
    """Spread the same jobs over many emitters: providers in one process, which share their connections."""

    name = "emitters"
    title = "with 50 emitters: providers in one process, which share their connections"
    columns = (*_ENQUEUE, *_REPLY)
    variants = ("1 emitter", "50 emitters, as many in flight in all", "50 emitters, 10 times in flight")
    limits = (
        *flat_costs(variants[1], *(column.field for column in columns)),
        *flat_costs(variants[2], *(column.field for column in columns)),
    )
    most_rounds = 2

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure one, then many."""
        for variant, emitters, times in zip(self.variants, (1, 50, 50), (1, 1, 10), strict=True):
            lab.server.empty()
            line = lab.emit("enqueue", lab.count, in_flight=_IN_FLIGHT * times, emitters=emitters)
            yield variant, cost("enqueue", line)
            lab.server.empty()
            with lab.worker() as worker:
                line = lab.emit(
                    "reply",
                    int(lab.count * _REPLY_SHARE),
                    worker=worker,
                    in_flight=_REPLIES_IN_FLIGHT * times,
                    emitters=emitters,
                )
            yield variant, cost("reply", line)
