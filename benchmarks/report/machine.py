"""The facts of a run: the machine, its other load, the software, the date. No names or paths."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.sides import Side

_GIB = 1024**3


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / _GIB:.0f} GiB"


class OtherLoad:
    """Measures what other programs take of the machine's CPU from its making to `share`.

    Ratios suffer under it too: sides that keep more cores busy lose more.
    """

    def __init__(self) -> None:
        self._busy, self._total = _cpu_times()
        self._own = _own_cpu()

    def share(self) -> float | None:
        """Return the part of all cores' time, 0 to 1; None where the system does not tell.

        Our own processes must have ended and been waited for.
        """
        busy, total = _cpu_times()
        if total == self._total:
            return None
        return max(0.0, busy - self._busy - (_own_cpu() - self._own)) / (total - self._total)


def _cpu_times() -> tuple[float, float]:
    """Return the seconds that all cores were not idle, stolen time included, and all their seconds."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0.0, 0.0
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    ticks = os.sysconf("SC_CLK_TCK")
    return busy / ticks, (busy + idle + iowait) / ticks


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def facts(server: str, sides: Iterable[Side], other: float | None, seconds: float) -> dict[str, str]:
    """Return name → value, in the order to show them."""
    versions = [f"{name} {number}" for side in sides for name, number in side.versions().items()]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory()}",
        "other programs": "not known" if other is None else f"{other:.0%} of all cores' time in the run",
        "duration": f"{seconds / 60:.1f} minutes",
        "system": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": server,
        "packages": ", ".join(versions),
    }
