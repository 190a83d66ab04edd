"""Flows of DBOS with its default store, a file of SQLite, in the process that calls them.

Each move of a machine is a step, because DBOS saves where a workflow stands with each step. No process and no
queue lies between the caller and the flow, as DBOS has it when a workflow is called. It needs a newer SQLite
than many systems have, so the one of `pysqlite3` takes the place of Python's.
"""

from __future__ import annotations

import sys
import tempfile
import time

import pysqlite3
import pysqlite3.dbapi2

sys.modules["sqlite3"], sys.modules["sqlite3.dbapi2"] = pysqlite3, pysqlite3.dbapi2

from dbos import DBOS  # noqa: E402  (it must find the newer SQLite)

from benchmarks.measure import Flags, Line, Stopwatch, check, flags, in_lanes, report, run, with_quantiles  # noqa: E402

_WARM_UP_SHARE = 5


@DBOS.step()
async def answer(n: int) -> int:
    return n + 1


@DBOS.workflow()
async def chain(n: int, members: int) -> int:
    found = 0
    for _ in range(members):
        found = await answer(n)
    return found


async def main(given: Flags) -> Line:
    times = [0.0] * given.count

    async def one(n: int) -> None:
        start = time.perf_counter()
        check(n, await chain(n, given.members))
        times[n] = time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{folder}/bench.sqlite",
                "log_level": "ERROR",
                "run_admin_server": False,
            }
        )
        DBOS.launch()
        await in_lanes(max(1, given.count // _WARM_UP_SHARE), given.in_flight, one)
        with Stopwatch(given.url) as watch:
            await in_lanes(given.count, given.in_flight, one)
        DBOS.destroy()
    return with_quantiles(watch.line(given.count), times)


if __name__ == "__main__":
    if sys.argv[1] == "worker":  # the flows run where they are called, so there is nothing to do
        while True:
            time.sleep(1)
    report(run(main(flags(("chain", "program", "pipeline", "machine")))))
