"""The entry point of the command line: `eventbus` and `python -m eventbus`.

A worker may be asked to end at any moment, also while Python still imports its code. Therefore `eventbus
worker` handles SIGTERM and SIGINT from the first line of `main` until the process has ended:

    starting   (here, until the worker's event loop runs)   no work has begun: it ends at once, exit code 0
    running    (`cli.signals.Interrupts`)                    it ends in order
    ended      (here again, to the last step)                no work is left: it ends at once, exit code 0

What must always hold: each signal handler replaces the one before in one step, so that a signal always meets
one of them. The interpreter's own exit would first give the signals back to the system, so a worker leaves
without it. Other commands keep Python's default signal handling, and leave in the same way, because it is
faster.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

_OURS = frozenset({"rich", "typer"})  # the packages of the `cli` extra


def main() -> None:
    """Run the command line and end the process. The exit code is 2 when the `cli` extra is not installed."""
    is_worker = next((word for word in sys.argv[1:] if not word.startswith("-")), "") == "worker"
    if is_worker:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
    else:
        # Until the command runs there is nothing to end in order, and nobody wants a traceback of imports.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # All that modules make as they are imported stays, and looking for garbage in it takes a tenth of the
    # start. `cli.loop.run` turns it on again before work begins.
    gc.disable()
    try:
        import_module("rich")  # most commands need it, and all of them should say that it is missing
        from eventbus.cli.app import app  # noqa: PLC0415  (an extra)

        if is_worker:
            import_module("eventbus.cli.loop")  # so that the end imports nothing
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OURS:
            raise
        sys.stderr.write(
            f"eventbus: the command line needs {error.name}; pip install 'eventbus-workflows[cli]'\n"
        )
        sys.exit(2)
    if not is_worker:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:  # before or behind the command's own border
        os._exit(128 + signal.SIGINT)
    except SystemExit as end:
        loop = sys.modules.get("eventbus.cli.loop")
        if loop is None:  # no event loop ran, so nothing is left to wait for
            raise
        loop.leave(end.code if isinstance(end.code, int) else 0)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(0)


if __name__ == "__main__":
    main()
