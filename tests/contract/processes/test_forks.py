"""Forks of a process that uses a provider: they start afresh and take nothing from their parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventProvider

MakeProvider = Callable[..., EventProvider]
_ROOT = Path(__file__).parents[3]

_HEAD = """
import asyncio, gc, os, signal, sys, time, warnings
import redis
from eventbus import EventProvider, ProviderStopped, UsageError
from eventbus.cli.failures import one_line

warnings.simplefilter("ignore", DeprecationWarning)  # of fork, in a process with threads
url, prefix, case = sys.argv[1:]
LOOPS = ('loop', 'sync', 'inside')
provider = EventProvider(url, prefix=prefix, name="forking")

# Beside a loop of the parent nobody can go on to the program's end.
leave = os._exit if case in LOOPS else sys.exit

def told(call):
    try:
        return call()
    except UsageError as error:
        return "forked" if "forked" in str(error) or "process" in str(error) else str(error)

def fork(child):
    '''Run `child` in a forked process; returns what it returned, once that has ended as programs do.'''
    sys.stdout.flush()  # else the child writes it once more
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(30)  # one that hangs does not stay
        try:
            os.write(theirs, repr(child()).encode())
        except Exception as error:
            os.write(theirs, repr(error).encode())
        gc.collect()
        leave(7)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = answer.read()
    _, status = os.waitpid(pid, 0)
    return said, os.waitstatus_to_exitcode(status)

def connections():
    with redis.Redis.from_url(url) as client:
        return sorted(
            f"{each['id']} {each['name']}"
            for each in client.client_list()
            if each["name"].startswith("forking")
        )

def both_connections():
    while len(now := connections()) < 2:
        time.sleep(0.005)
    return now

def has_kept(before):
    end = time.monotonic() + 240
    while (now := connections()) != before:  # the server may not have seen a child's end yet
        if time.monotonic() > end:
            return f"not {before} but {now}"
        time.sleep(0.005)
    return "kept"
"""

_THREAD = (
    _HEAD
    + """
open_one = provider.sync.emit("half", 100)
open_one.enqueued()
later = provider.sync.emit("later", 8)
later.enqueued()
before = both_connections()

def child():
    async def use():
        for call in (lambda: provider.emit("half", 2), lambda: provider.emit_many("half", [2])):
            yield told(call)
    async def collect():
        return [each async for each in use()]
    heard = [told(lambda: later.result(5)), told(later.enqueued), told(later.cancel), told(open_one.result)]
    heard += asyncio.run(collect())
    heard += [provider.sync.emit("half", n).result(240) for n in (2, 4)]
    heard += [provider.sync.result(open_one.job_id)]
    grandchild = fork(lambda: provider.sync.emit("half", 6).result(240))
    return [*heard, *grandchild]

print(fork(child))
print(has_kept(before))
provider.sync.emit("go", 0)
print(later.result(240), open_one.result(240), provider.sync.emit("half", 12).result(240))
print(has_kept(before))
"""
)

_LOOP = (
    _HEAD
    + """
async def work():
    async with provider:
        later = provider.emit("later", 8)
        await later.enqueued()
        before = await asyncio.to_thread(both_connections)

        def child():
            async def use():
                heard = [told(lambda: provider.emit("half", 2))]
                for wait in (later, later.cancel(), provider.flush(), provider.result(later.job_id)):
                    try:
                        await wait
                    except UsageError as error:
                        heard.append(told(lambda: (_ for _ in ()).throw(error)))
                async with provider:
                    heard.append(await provider.emit("half", 2))
                try:
                    provider.emit("half", 2)
                except ProviderStopped:
                    heard.append("stopped")
                return heard

            if case == "loop":
                return asyncio.run(use())
            progress = told(lambda: provider._life._thread.find_running("record progress"))
            return [provider.sync.emit("half", 4).result(240), progress]

        print(fork(child) if case == "inside" else await asyncio.to_thread(fork, child))
        print(has_kept(before))
        await provider.emit("go", 0)
        print(await later, await provider.emit("half", 12))
        print(has_kept(before))

asyncio.run(work())
"""
)

_SHARED = (
    _HEAD
    + """
other = EventProvider(url, prefix=prefix, name="forking")

async def work():
    async with provider, other:
        before = await asyncio.to_thread(both_connections)

        def child():
            async def use():
                async with other, provider:
                    return [await provider.emit("half", 2), await other.emit("half", 4), len(connections())]
            return asyncio.run(use())

        print(await asyncio.to_thread(fork, child))
        print(has_kept(before), len(before))
        print(await provider.emit("half", 6), await other.emit("half", 8))
        print(has_kept(before))

asyncio.run(work())
"""
)

_STARTING = (
    _HEAD
    + """
import threading
# Nobody listens here: the thread holds the lock of provider.sync for as long as it tries.
starting = threading.Thread(target=lambda: provider.sync.emit("half", 2, reply=False))
starting.start()
while not provider.sync._thread._lock.locked():
    time.sleep(0.001)

def child():
    try:
        provider.sync.emit("half", 2, reply_timeout=0.2).result(240)
    except Exception as error:
        return type(error).__name__

print(fork(child))
starting.join()
"""
)

_PROCESSES = (
    _HEAD
    + """
import multiprocessing

def emit_and_end():
    for n in range(3000):
        provider.sync.emit("counted", n, reply=False)

if __name__ == "__main__":
    if case == "fork":
        provider.sync.emit("half", 2).result(240)
    process = multiprocessing.get_context(case).Process(target=emit_and_end)
    process.start()
    process.join()
    print(process.exitcode)
"""
)


_BUSY = ("started without a server", "server available again")
"""What a program logs whose server has too much to do to answer at once, as on a busy machine."""


async def _run(path: Path, program: str, *words: str) -> list[str]:
    ran = await asyncio.to_thread(_run_program, path, program, words)
    lines = [line for line in ran.stderr.splitlines() if not any(each in line for each in _BUSY)]
    assert (ran.returncode, lines) == (0, [])
    return ran.stdout.splitlines()


def _run_program(path: Path, program: str, words: Iterable[str]) -> subprocess.CompletedProcess[str]:
    path.write_text(program)
    return subprocess.run(
        [sys.executable, str(path), *words], capture_output=True, text=True, timeout=300, check=False
    )


def _serving(make_provider: MakeProvider) -> EventProvider:
    provider = make_provider()
    go = asyncio.Event()

    @provider.on("half", concurrency=50)
    async def half(n: int) -> float:
        return n / 2

    @provider.on("later")
    async def later(n: int) -> float:
        await go.wait()
        return n / 2

    @provider.on("go")
    async def let_go(n: int) -> None:
        go.set()

    return provider


@pytest.mark.slow
async def test_in_a_child_of_a_script_the_sync_side_begins_anew(
    make_provider: MakeProvider, server_url: str, prefix: str, tmp_path: Path
) -> None:
    async with _serving(make_provider).worker():
        said = await _run(tmp_path / "program.py", _THREAD, server_url, prefix, "")
    heard = [*["forked"] * 6, 1.0, 2.0, 50.0, "3.0", 7]
    assert said[0] == repr((repr(heard), 7))
    assert said[1:] == ["kept", "4.0 50.0 6.0", "kept"], "the parent goes on with its own connections"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "heard"),
    [("loop", [*["forked"] * 5, 1.0, "stopped"]), ("sync", [2.0, "forked"]), ("inside", [2.0, "forked"])],
)
async def test_in_a_child_of_an_event_loop_the_provider_is_not_started(
    make_provider: MakeProvider, server_url: str, prefix: str, tmp_path: Path, case: str, heard: list[Any]
) -> None:
    async with _serving(make_provider).worker():
        said = await _run(tmp_path / "program.py", _LOOP, server_url, prefix, case)
    assert said == [repr((repr(heard), 7)), "kept", "4.0 6.0", "kept"]


@pytest.mark.slow
async def test_a_child_shares_among_its_providers_and_nothing_with_those_of_the_parent(
    make_provider: MakeProvider, server_url: str, prefix: str, tmp_path: Path
) -> None:
    async with _serving(make_provider).worker():
        said = await _run(tmp_path / "program.py", _SHARED, server_url, prefix, "loop")
    assert said == [repr((repr([1.0, 2.0, 4]), 7)), "kept 2", "3.0 4.0", "kept"]


@pytest.mark.slow
async def test_a_lock_that_another_thread_held_at_the_fork_holds_nobody_up(
    unused_tcp_port: int, prefix: str, tmp_path: Path
) -> None:
    url = f"redis://127.0.0.1:{unused_tcp_port}"
    program = _STARTING.replace(
        "url, prefix, case",
        "import structlog; structlog.configure(logger_factory="
        "structlog.ReturnLoggerFactory())\nurl, prefix, case",
    )  # the start without a server is no news here
    said = await _run(tmp_path / "program.py", program, url, prefix, "")
    assert said == [repr((repr("EmitError"), 7))]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fork", "spawn"])
async def test_what_a_process_of_multiprocessing_emits_last_arrives(
    make_provider: MakeProvider,
    server_url: str,
    prefix: str,
    tmp_path: Path,
    case: str,
    admin: Callable[..., Any],
) -> None:
    async with _serving(make_provider).worker():
        said = await _run(tmp_path / "program.py", _PROCESSES, server_url, prefix, case)
    assert said == ["0"]
    assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.counted") == 3000


@pytest.mark.slow
async def test_the_end_of_a_child_does_not_end_the_embedded_server_of_its_parent(
    tmp_path: Path, prefix: str
) -> None:
    program = (
        _HEAD
        + """
provider.sync.emit("half", 8, reply=False).enqueued()
def child():
    provider.sync.emit("half", 10, reply=False).enqueued()
print(fork(child))
print(fork(lambda: None))
provider.sync.emit("half", 12, reply=False).enqueued()
print(len(list(__import__("pathlib").Path(case, "users").glob("*.lock"))))
"""
    )
    program = program.replace("EventProvider(url", "EventProvider(f'embedded:{case}'")
    data = str(tmp_path / "data")
    words = ("", prefix, data)
    ran = await asyncio.to_thread(_run_program, tmp_path / "program.py", program, words)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["('None', 7)"] * 2 + ["1"]), ran.stderr
    assert ran.stderr.count("embedded server") == 2, "the parent's, and that of the child which used it"
