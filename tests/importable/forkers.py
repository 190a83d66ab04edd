"""Handlers that fork in every way; a pool process imports them from here by name."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import structlog

__all__ = ["become_a_daemon", "echo", "fork", "fork_and_go", "fork_and_hold", "parallel"]


def echo(payload: Any) -> list[Any]:
    return [payload, os.getpid()]


def fork(how: str) -> list[Any]:
    """Fork. The fork ends as `how` says, within this call; its parent waits and returns the exit code."""
    me = os.getpid()
    if how == "in a thread":
        return [how, me, _fork_in_a_thread()]
    if how == "before a program":
        program = subprocess.run([sys.executable, "-c", "exit(3)"], preexec_fn=os.getpid, check=False)
        return [how, me, program.returncode]
    print(f"printed before it {how}")  # noqa: T201
    forked = (
        ctypes.PyDLL(None).fork() if how == "natively" else os.fork()
    )  # no hook of Python sees a native fork
    if forked == 0:
        return _IN_FORK[how]()
    return [how, me, os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])]


def _fork_in_a_thread() -> int:
    codes: list[int] = []

    def work() -> None:
        forked = os.fork()
        if forked:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return codes[0]


def _return() -> list[Any]:
    return ["of the fork", 0, 0]


def _raise() -> list[Any]:
    raise RuntimeError("of the fork")


def _execute() -> list[Any]:
    os.execv("/nowhere/at/all", ["program"])


def _exit() -> list[Any]:
    sys.exit(3)


def _exit_with_words() -> list[Any]:
    sys.exit("last words")


def _log() -> list[Any]:
    structlog.get_logger().warning("told by a fork", file="\udcff.csv")
    print("printed by a fork")  # noqa: T201
    return _return()


def _fork_again() -> list[Any]:
    if os.fork():
        os.wait()
    return _return()


def _close_all() -> list[Any]:
    os.closerange(3, 4096)
    return _return()


def _end_by_a_signal() -> list[Any]:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
    return _return()


_IN_FORK: dict[str, Callable[[], list[Any]]] = {
    "returns": _return,
    "raises": _raise,
    "fails to execute": _execute,
    "exits": _exit,
    "exits with words": _exit_with_words,
    "logs": _log,
    "forks again": _fork_again,
    "closes all": _close_all,
    "natively": _raise,
    "ends by a signal": _end_by_a_signal,
}


def fork_and_go(folder: str) -> list[Any]:
    """Fork and return at once; the fork returns as soon as the file `go` exists."""
    forked = os.fork()
    if forked:
        return [forked, os.getpid()]
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return _return()


def fork_and_hold(folder: str) -> None:
    """Fork, write both process ids into a file, and keep running."""
    forked = os.fork()
    if forked:
        path = Path(folder, "both")
        path.with_suffix(".new").write_text(f"{os.getpid()} {forked}")
        path.with_suffix(".new").rename(path)
    time.sleep(600)


def become_a_daemon(_: Any) -> list[Any]:
    """Daemonize in the classic way: the process ends, and its fork goes on."""
    if os.fork():
        os._exit(0)
    return _return()


def parallel(how: str) -> list[Any]:
    """Square numbers in processes of the standard library; end one of them by force, let one fail."""
    if how == "executor":
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
            return [list(executor.map(_square, range(5)))]
    context: Any = multiprocessing.get_context(how)
    with context.Pool(2) as pool:  # the pool ends its processes by SIGTERM
        squares = pool.map(_square, range(5))
    endless = context.Process(target=_sleep)
    endless.start()
    endless.terminate()
    endless.join()
    failing = context.Process(target=_raise)
    failing.start()
    failing.join()
    return [squares, endless.exitcode, failing.exitcode]


def _square(n: int) -> int:
    structlog.get_logger().info("squares", n=n)
    return n * n


def _sleep() -> None:
    time.sleep(600)
