"""Handlers that tests register for the process pool; its processes import them from here by name."""

from __future__ import annotations

import decimal
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog
from opentelemetry import baggage, trace

from eventbus import Event, JobFacts, Later, Unrecoverable

__all__ = [
    "Crunched",
    "Missing",
    "NotEven",
    "Numbers",
    "crunch",
    "crunched",
    "double",
    "fail",
    "fail_with",
    "hold",
    "leave_a_thread",
    "noise",
    "pid",
    "shadowed",
    "tell_facts",
    "tell_names",
    "tell_odd_name",
    "tell_surroundings",
    "wrong",
]


class Missing(KeyError):
    """An error whose class inherits from a built-in one."""


class Numbers(msgspec.Struct):
    values: list[decimal.Decimal]
    even: bool = False


class Crunched(msgspec.Struct):
    total: decimal.Decimal
    pid: int


class NotEven(Exception):
    pass


crunched = Event("crunched", payload=Numbers, result=Crunched, errors=[NotEven])


def crunch(numbers: Numbers) -> Crunched:
    """Take and return typed values; raise an error that the event declares."""
    total = sum(numbers.values, decimal.Decimal(0))
    if numbers.even and total % 2:
        raise NotEven(str(total))
    return Crunched(total, os.getpid())


def wrong(numbers: Numbers) -> Crunched:
    return "not what was declared"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def double(n: int) -> int:
    return 2 * n


def pid(_: Any) -> int:
    return os.getpid()


def leave_a_thread(_: Any) -> int:
    """Return, and leave a thread behind that the interpreter waits for at exit."""
    threading.Thread(target=lambda: time.sleep(600)).start()
    return os.getpid()


def tell_facts(payload: Any, facts: JobFacts) -> dict[str, Any]:
    facts.log.info("told", value=decimal.Decimal("1.5"))
    names = ("event", "group", "job_id", "attempt", "correlation_id", "causation_id", "meta")
    return {name: getattr(facts, name) for name in names}


def tell_names(_: Any, facts: JobFacts) -> list[str]:
    return [facts.worker, facts.provider]


def tell_odd_name(_: Any) -> None:
    structlog.get_logger().info("read \udcff", file="\udcff.csv", size=3)


def fail(payload: str) -> None:
    """Fail in the named way."""
    if payload == "unrecoverable":
        raise Unrecoverable("for good")
    if payload == "exit":
        sys.exit(3)
    if payload == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if payload == "leave":
        os._exit(7)
    try:
        raise KeyError("inside")
    except KeyError as error:
        raise ValueError("outside") from error


def hold(folder: str) -> None:
    """Start a child program, write both process ids into a file, and end when `go` exists, or by a kill."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path = Path(folder) / f"{os.getpid()}"
    path.with_suffix(".new").write_text(str(child.pid))
    path.with_suffix(".new").rename(path.with_suffix(".running"))
    end = time.monotonic() + 300
    while not (Path(folder) / "go").exists() and time.monotonic() < end:
        time.sleep(0.002)
    child.kill()
    child.wait()


def noise(payload: str) -> None:
    print(payload)  # noqa: T201
    print(payload, file=sys.stderr)  # noqa: T201


def _wrapped(payload: Any) -> Any:
    return payload


shadowed = _wrapped
shadowed.__qualname__ = "double"  # as a careless decorator would leave it


def tell_surroundings(_: int) -> dict[str, Any]:
    """Return the context that log events, spans and emissions would have here."""
    span = trace.get_current_span().get_span_context()
    return {
        "facts": structlog.contextvars.get_contextvars(),
        "baggage": dict(baggage.get_all()),
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
    }


def fail_with(kind: str) -> None:
    """Raise an error of the class that the payload names."""
    module, name = kind.rsplit(".", 1)
    raise getattr(sys.modules[module], name)("as asked")


def wait_twice(folder: str, ctx: JobFacts) -> list[int]:
    """Put the job off twice; return the number of the attempt of each run."""
    path = Path(folder, "attempts")
    attempts = [*(path.read_text().split() if path.exists() else []), str(ctx.attempt)]
    path.write_text(" ".join(attempts))
    if len(attempts) < 3:
        raise Later("10ms")
    return [int(each) for each in attempts]


def wait_in_thread(folder: str, ctx: JobFacts) -> list[int]:
    """Do the same, by another name."""
    return wait_twice(folder, ctx)
