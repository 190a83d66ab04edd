"""One worker process: the server's CPU and its own for each no-op job, and what it asks of the server when
idle.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from benchmarks.own.lab import Lab
from benchmarks.own.row import Column, Limit


class ServerCpu:
    """The server's CPU for the whole life of a plain job: a bulk add, its claim and its settle."""

    name = "server-cpu"
    title = "the server's CPU for each plain job: add in bulk, claim and settle"
    columns = (
        Column("cpu_us", "all of it, µs/job"),
        Column("add_us", "add, µs/job"),
        Column("drain_us", "claim and settle, µs/job"),
    )
    variants = ("server",)
    limits = (Limit("cpu_us", "server", 12.0),)
    most_rounds = 5

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Fill and drain once."""
        lab.server.empty()
        add, drain = lab.fill(lab.count).server_cpu_us, lab.drain(lab.count).server_cpu_us
        yield "server", {"cpu_us": add + drain, "add_us": add, "drain_us": drain}


class WorkerCpu:
    """The CPU of the worker process for each job of a drain, from its first handler call to its last."""

    name = "worker-cpu"
    title = "a worker's own CPU for each no-op job, in a drain"
    columns = (
        Column("user_us", "process, user, µs/job"),
        Column("loop_us", "of it the event loop's thread, µs/job"),
        Column("system_us", "process, system, µs/job"),
    )
    variants = ("worker",)
    limits = (Limit("user_us", "worker", 15.0),)
    most_rounds = 5

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Drain once."""
        lab.server.empty()
        lab.fill(lab.count)
        line = lab.drain(lab.count)
        yield (
            "worker",
            {
                "user_us": line.worker_user_us or 0.0,
                "loop_us": line.loop_user_us or 0.0,
                "system_us": line.worker_system_us or 0.0,
            },
        )


class Idle:
    """The commands of a worker that has nothing to do, as the server's MONITOR shows them."""

    name = "idle"
    title = "an idle worker with 10 event types"
    columns = (Column("sent", "commands sent, 1/s"), Column("in_scripts", "commands inside its scripts, 1/s"))
    variants = ("worker",)
    limits = (Limit("sent", "worker", 2.0),)
    most_rounds = 1

    def measure(self, lab: Lab) -> Iterator[tuple[str, dict[str, float]]]:
        """Watch one worker after it has answered jobs."""
        window = 3.0 if lab.is_small else 20.0
        lab.server.empty()
        with lab.worker("noop:10") as worker:
            lab.emit("reply", 20, worker=worker, in_flight=10, types=10)
            sent, in_scripts = monitored(lab.server.url, window)
            worker.check_runs()
        yield "worker", {"sent": sent / window, "in_scripts": in_scripts / window}


def monitored(url: str, seconds: float) -> tuple[int, int]:
    """Count the commands that the server runs in a window: those sent, and those inside scripts."""
    place = urlsplit(url)
    sent = in_scripts = 0
    with socket.create_connection((place.hostname or "127.0.0.1", place.port or 6379)) as link:
        link.sendall(b"MONITOR\r\n")
        end = time.monotonic() + seconds
        text = b""
        while (left := end - time.monotonic()) > 0:
            link.settimeout(left)
            try:
                text += link.recv(65536)
            except TimeoutError:
                break
            *lines, text = text.split(b"\r\n")
            commands = [line for line in lines if line.startswith(b"+") and b"[" in line]
            scripted = sum(b" lua] " in line for line in commands)
            in_scripts += scripted
            sent += len(commands) - scripted
    return sent, in_scripts
