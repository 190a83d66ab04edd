"""The embedded server on a disk that is full: what is refused, what is told, and what outlives its ends.

The disk is a file system of 1 MB, which needs the rights to mount one; where they are missing these tests are
not collected.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
from harness.conditions import wait_until

from eventbus import EmitError, EventProvider
from eventbus.store.connection.connector import Connector
from eventbus.store.diagnostics import Checkup
from eventbus.store.embedded.server import end_server


def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        try:
            if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
                return False
        except FileNotFoundError:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


if not _may_mount():
    pytest.skip("this user may not mount a file system", allow_module_level=True)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 1 MB, and in the end no server on it."""
    with tempfile.TemporaryDirectory(prefix="eb-") as name:
        folder = Path(name)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", name], check=True)
        try:
            yield folder
            end_server(folder / "data", force=True)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


async def _fill(provider: EventProvider) -> list[str]:
    """Emit until the server refuses; return the jobs that it acknowledged."""
    kept: list[str] = []
    while True:
        emission = provider.emit("work", "x" * 20_000, reply=False)
        try:
            await emission
        except EmitError:
            return kept
        kept.append(emission.job_id)


async def _waiting(url: str) -> list[str]:
    async with EventProvider(url) as provider:
        page = await provider.inspector.jobs.list("work", state="waiting", limit=1000)
        return [job.id for job in page.jobs]


async def test_ten_kills_on_a_full_disk_lose_what_was_answered_in_the_last_moment_alone(disk: Path) -> None:
    url = f"embedded:{disk / 'data'}"
    acknowledged: list[str] = []
    for _ in range(10):
        async with EventProvider(url) as provider:
            acknowledged += await _fill(provider)
            _kill(disk / "data")
    (disk / "data/server.log").write_text("")  # some room
    left = await _waiting(url)
    assert left == [job for job in acknowledged if job in set(left)], "in their order"
    lost = [job for job in acknowledged if job not in set(left)]
    assert len(left) >= 20
    assert len(lost) <= 10, "at most the one that met the end of the disk, each time"


async def test_a_stop_on_a_full_disk_says_what_it_loses_and_the_server_says_that_it_cannot_save(
    disk: Path,
) -> None:
    url = f"embedded:{disk / 'data'}"
    with structlog.testing.capture_logs() as logs:
        async with EventProvider(url) as provider:
            await _fill(provider)
            connector = Connector(url)
            found = await Checkup(connector, prefix=provider.settings.prefix, name="check").run(
                [], allow_eviction=False, replicated=False
            )
            await connector.aclose()
        assert [each.level for each in found if "append-only file failed" in each.said] == ["error"]
    assert _told(logs, "the server cannot save its data") == 1
    assert _told(logs, "embedded server ends without its newest data: it could not write them") == 1


async def test_a_server_that_gets_room_again_loses_nothing_and_says_so(disk: Path) -> None:
    url, ballast = f"embedded:{disk / 'data'}", disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    with structlog.testing.capture_logs() as logs:
        async with EventProvider(url) as provider:
            acknowledged = await _fill(provider)
            ballast.unlink()

            async def emit_again() -> bool:
                emission = provider.emit("work", "again", reply=False)
                try:
                    await emission
                except EmitError:
                    return False
                acknowledged.append(emission.job_id)
                return True

            while not await emit_again():  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the server tries each second by itself
    assert _told(logs, "the server saves its data again") == 1
    assert _told(logs, "embedded server ends without its newest data: it could not write them") == 0
    assert await _waiting(url) == acknowledged


def _kill(folder: Path) -> None:
    """Kill the server of a folder, whose file of its process id may be empty, and wait until it is dead."""
    with redis.Redis(unix_socket_path=(folder / "server.socket").read_text()) as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGKILL)
    cmdline = Path(f"/proc/{pid}/cmdline")
    wait_until("it is dead", lambda: not cmdline.exists() or not cmdline.read_bytes())


def _told(logs: list[MutableMapping[str, Any]], event: str) -> int:
    return sum(1 for each in logs if each["event"] == event)
