"""What an open dashboard costs, with very many jobs: `python -m benchmarks.looks.viewers --count 1000000`.

It starts a server of its own, fills one queue with jobs that are delayed, completed and failed and 199 queues
with one job each, and starts `eventbus dashboard` in a process of its own. It prints how long the overview
takes, with the CPU of the server that it costs; and how long an emission takes alone and beside ten viewers,
in rounds that take turns. It asserts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Annotated, Any

import httpx2
import structlog
import typer

from eventbus import EventProvider, Retry

_EVENT = "bulk"
_OTHERS = 199
_FAILED = 5000
_CHUNK = 5000
_VIEWERS = 10
_POLL = 2.0
_APART = ("nice", "-n", "19")
"""The dashboard and its viewers give way to the server and the emitter.

All of them share this machine's cores, which they would not elsewhere; what is measured is how they hold the
server up.
"""
_EMITS = 1500
_PACE = 0.004
"""Seconds from one emission to the next, so that the emitter is not what is measured."""


async def _fill(provider: EventProvider, count: int) -> None:
    @provider.on(_EVENT, retry=Retry(attempts=1), concurrency=500)
    async def handle(n: int) -> int:
        if n < 0:
            raise ValueError(f"no {n}")
        return n

    async with provider.worker():
        for first in range(0, count, _CHUNK):
            provider.emit_many(_EVENT, range(first, min(first + _CHUNK, count)), reply=False)
            await provider.flush()
        provider.emit_many(_EVENT, range(-_FAILED, 0), reply=False)
        await provider.flush()
        while sum((await provider.inspector.queues.count(_EVENT, states=["waiting", "active"])).values()):  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.5)
    for first in range(0, count, _CHUNK):
        provider.emit_many(_EVENT, range(first, min(first + _CHUNK, count)), delay="1 day", reply=False)
        await provider.flush()
    for n in range(_OTHERS):
        await provider.emit(f"other.{n}", n, reply=False)


async def _server_cpu(provider: EventProvider) -> float:
    """Return the CPU that the server has used, seconds."""
    store = provider._life.running("measure").store  # noqa: SLF001
    text = await store._caller.command("INFO", "cpu")  # noqa: SLF001
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


@contextlib.asynccontextmanager
async def _dashboard(server: str) -> AsyncIterator[httpx2.AsyncClient]:
    words = (*_APART, sys.executable, "-m", "eventbus", "dashboard", "--port", "0", "--url", server)
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert program.stdout is not None
    (link,) = re.findall(rb"http\S+", await program.stdout.readline())
    try:
        async with httpx2.AsyncClient(timeout=30) as client:
            await client.get(link.decode())
            client.base_url = link.decode().partition("/sign-in")[0]
            yield client
    finally:
        program.terminate()
        await program.wait()


async def _time_overview(provider: EventProvider, client: httpx2.AsyncClient) -> None:
    took, cpu = list[float](), list[float]()
    for _ in range(9):
        await asyncio.sleep(_POLL + 0.5)  # so that the dashboard reads again
        before, begin = await _server_cpu(provider), perf_counter()
        (await client.get("/")).raise_for_status()
        took.append(perf_counter() - begin)
        cpu.append(await _server_cpu(provider) - before)
    print(
        f"overview: {statistics.median(took) * 1000:.1f} ms (largest {max(took) * 1000:.1f}), "
        f"{statistics.median(cpu) * 1000:.2f} ms of the server's CPU (largest {max(cpu) * 1000:.2f})"
    )


async def _watch(client: httpx2.AsyncClient) -> None:
    """Be one viewer, as a page is that looks again at its interval."""
    headers = {"hx-request": "true"}
    while True:
        answer = await client.get("/", headers=headers)
        headers["hx-ptag"] = answer.headers["hx-ptag"]
        await asyncio.sleep(_POLL)


async def _time_emits(provider: EventProvider) -> list[float]:
    times = list[float]()
    for n in range(_EMITS):
        begin = perf_counter()
        await provider.emit("timed", n, reply=False).enqueued()
        times.append(perf_counter() - begin)
        await asyncio.sleep(_PACE)
    return times


async def _watch_all(url: str, cookies: Any) -> None:
    async with httpx2.AsyncClient(base_url=url, cookies=cookies, timeout=30) as client:
        await asyncio.gather(*(_watch(client) for _ in range(_VIEWERS)))


async def _measure(server: str, count: int, rounds: int) -> None:
    settings: dict[str, Any] = {"keep_failed": 10 * count, "keep_completed": 10 * count}
    async with EventProvider(server, **settings) as provider:
        begin = perf_counter()
        await _fill(provider, count)
        print(f"filled in {perf_counter() - begin:.0f} s", flush=True)
        async with _dashboard(server) as client:
            await _time_overview(provider, client)
            ratios = list[float]()
            for _ in range(rounds):
                alone = await _time_emits(provider)
                # In a process of its own, so that the emitter's process has nothing else to do.
                words = (
                    *_APART,
                    sys.executable,
                    "-m",
                    "benchmarks.looks.viewers",
                    "--watch",
                    str(client.base_url),
                )
                cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
                viewers = await asyncio.create_subprocess_exec(*words, "--cookie", cookie)
                await asyncio.sleep(_POLL)
                beside = await _time_emits(provider)
                viewers.terminate()
                await viewers.wait()
                p99 = [statistics.quantiles(times, n=100)[98] * 1000 for times in (alone, beside)]
                ratios.append(p99[1] / p99[0])
                print(
                    f"emit p99: {p99[0]:.2f} ms alone, {p99[1]:.2f} ms beside {_VIEWERS} viewers", flush=True
                )
            print(
                f"ratio: {statistics.median(ratios):.2f} (of {', '.join(f'{each:.2f}' for each in ratios)})"
            )


def main(
    *,
    count: Annotated[
        int, typer.Option(min=100, help="Jobs that are delayed, and as many completed.")
    ] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of emissions alone and beside viewers.")] = 5,
    watch: Annotated[str, typer.Option(help="Be the viewers of this dashboard.")] = "",
    cookie: Annotated[str, typer.Option(help="Their cookie.")] = "",
) -> None:
    """Fill a server, and time an open dashboard."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if watch:
        name, _, value = cookie.partition("=")
        asyncio.run(_watch_all(watch, {name: value}))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_hold(f"embedded:{folder}/server", count, rounds))


async def _hold(server: str, count: int, rounds: int) -> None:
    async with EventProvider(server):  # so that the embedded server stays until the end
        await _measure(server, count, rounds)


if __name__ == "__main__":
    typer.run(main)
