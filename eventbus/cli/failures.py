"""The error border of the command line: it prints each error as one line that says what to do.

Exit codes: 0 done; 1 the work failed; 2 the command line or the program is wrong; 128 + n ended by signal n,
also if the reader of the output went away (141). With `--debug`, anywhere on the line, it prints the
traceback too.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, cast

from typer.core import TyperGroup

from eventbus.cli.output import say
from eventbus.errors import EventBusError, HandlerError, StoreUnavailable, UsageError

_DEBUG = "--debug"
_SERVER_REMEDY = "start a server there, or name another one with --url or EVENTBUS_URL"


class CommandError(Exception):
    """A command cannot go on. The text is the whole printed line; `exit_code` is 2 for wrong usage."""

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Border:
    """Whether tracebacks are printed: one value for the process, set by each command line."""

    is_debugging = False


def is_debugging() -> bool:
    """Return whether `--debug` was given."""
    return _Border.is_debugging


class BorderGroup(TyperGroup):
    """The group of all commands. A command returns its exit code or raises an error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and end the process with its code; return that without `standalone_mode`."""
        words = list(sys.argv[1:] if args is None else args)
        _Border.is_debugging = _DEBUG in words
        words = [word for word in words if word != _DEBUG]
        try:
            code = super().main(
                words, prog_name or "eventbus", complete_var, False, windows_expand_args, **extra
            )
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except Exception as error:  # noqa: BLE001  (the border handles all errors of commands)
            # The parser's word for an interrupt. Its class moves between releases.
            code = 128 + signal.SIGINT if type(error).__name__ == "Abort" else _report(error)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def tell(text: str) -> None:
    """Write one line to standard error."""
    say(text, err=True)


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line, with its type if the class is not one of this package."""
    text = " ".join(str(error).split())
    if isinstance(error, StoreUnavailable):
        return f"{text.rstrip('.')}; {_SERVER_REMEDY}"
    if isinstance(error, (EventBusError, CommandError)):
        return text
    notes = getattr(error, "__notes__", [])
    text = " ".join([text, *(f"({note})" for note in notes)]).strip()
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def import_hint() -> str:
    """Return a hint for an import error if other packages are in the place of ours; otherwise empty."""
    from eventbus.cli.packages import explain_import  # noqa: PLC0415  (slow to import, and rarely needed)

    why = explain_import()
    return f"; {why}" if why else ""


def _report(error: BaseException) -> int:
    """Print the error and return the exit code."""
    error = _first(error)
    if isinstance(error, BrokenPipeError):
        return leave_broken_pipe()
    if _Border.is_debugging:
        say(*"".join(traceback.format_exception(error)).splitlines(), err=True)
        if isinstance(error, HandlerError) and error.remote_traceback:
            say(*error.remote_traceback.splitlines(), err=True)
    message, code = _read(error)
    tell(f"eventbus: {message}")
    return code


def leave_broken_pipe() -> int:
    """Discard the rest of the output, because nobody reads it any more, and return the exit code."""
    # Otherwise the interpreter would fail once more when it flushes standard output at its end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 128 + signal.SIGPIPE


def _read(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code for an error."""
    if isinstance(error, CommandError):
        return one_line(error), error.exit_code
    if hasattr(error, "format_message"):  # an error of the parser, whose classes move between its releases
        return _read_parser_error(error)
    if isinstance(error, EventBusError):
        return one_line(error), 2 if isinstance(error, UsageError) else 1
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}", 1
    if isinstance(error, ImportError) and (hint := import_hint()):
        return f"{one_line(error)}{hint}", 2
    hint = "" if _Border.is_debugging else "; --debug shows the traceback"
    return f"unexpected {one_line(error)}{hint}", 1


def _read_parser_error(error: Any) -> tuple[str, int]:
    path = getattr(getattr(error, "ctx", None), "command_path", "eventbus")
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see `{path} --help`", error.exit_code


def _first(error: BaseException) -> BaseException:
    """Return the first error inside an exception group, at any depth."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
