"""A server's wall clock that a test can set, by a library that is preloaded into the server.

The test compiles it from `set_clock.c`, because Debian's Redis does not start with libfaketime.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
import time
from pathlib import Path

from harness.backends import Backend
from harness.conditions import wait_until

__all__ = ["ServerClock"]

_CLOSE = 30.0
_SOURCE = Path(__file__).with_name("set_clock.c")


class ServerClock:
    """The clock of all servers that are started with `environment`. Whoever makes it must close it."""

    def __init__(self, folder: Path) -> None:
        """Raises AssertionError on a machine without a C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler is not None, (
            "no C compiler: install one (apt-get install gcc libc6-dev) to set clocks"
        )
        library, file = folder / "set_clock.so", folder / "clock"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE], check=True)
        file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "EVENTBUS_TEST_CLOCK": str(file)}
        with file.open("r+b") as opened:
            self._offset = mmap.mmap(opened.fileno(), 8)

    def set(self, server: Backend, seconds: float) -> None:
        """Set the clock ahead of the true time by `seconds`, or behind it if negative.

        Returns once scripts see it, because Valkey does not read the clock at each script.
        """
        self._offset[:] = round(seconds * 1000).to_bytes(8, "little", signed=True)
        wait_until(f"its clock is {seconds:g} s off", lambda: abs(self._off(server) - seconds) < _CLOSE)

    def _off(self, server: Backend) -> float:
        return int(server.command("EVAL", "return redis.call('TIME')[1]", 0)) - time.time()

    def close(self) -> None:
        self._offset.close()
