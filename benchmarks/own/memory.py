"""The server's memory for each kept finished job."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit

_FRAME = '{"n":1234,"text":""}'
_TEXT = 1000 - len(_FRAME)
"""A payload of 1,000 bytes with four digits of `n`: the server's allocator gives 1,024 bytes for it, and
1,280 for 20 bytes more.
"""
_WARM = 200


class Memory:
    """Emit and await jobs, end the worker and the emitter, and see what the server keeps.

    The worker keeps all of them. Before the count there are some more, so that what each event costs once is
    no part of it.
    """

    name = "memory"
    title = "memory in the server for each kept finished job, awaited"
    columns = (Column("bytes", "bytes/job"), Column("over", "over payload and result, bytes/job"))
    variants = ('{"n": i}', f"payload of 1,000 bytes, result of {_TEXT + 2}")
    limits = (Limit("bytes", variants[0], 230.0), Limit("over", variants[1], 560.0))
    most_rounds = 1

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Measure small, then larger ones."""
        small, large = self.variants
        count = max(400, int(lab.count * 0.1))
        # `reply` answers as many again before its clock starts, up to 5,000.
        used = self._kept(lab, "noop", "reply", count, size=0) / 2
        yield small, {"bytes": used, "over": used - len('{"n":1234}') - len("1234")}
        used = self._kept(lab, "echo", "echo", count, size=_TEXT)
        sent, answered = len(_FRAME) + _TEXT, len('""') + _TEXT
        yield large, {"bytes": used, "over": used - sent - answered}

    def _kept(self, lab: Lab, serves: str, step: str, count: int, size: int) -> float:
        lab.server.empty()
        with lab.worker(serves, keep_completed="1000000,1 day") as worker:
            lab.emit(step, _WARM, worker=worker, in_flight=100, size=size)
        before = lab.server.used_memory()
        with lab.worker(serves, keep_completed="1000000,1 day") as worker:
            lab.emit(step, count, worker=worker, in_flight=100, size=size)
        return (lab.server.used_memory() - before) / count
