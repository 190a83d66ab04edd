"""The command line's way in: `eventbus` and `python -m eventbus`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_OURS = frozenset({"rich", "typer"})


def main() -> None:
    """Run the command line; never returns. Exit code 2 when the `cli` extra is not installed."""
    try:
        from eventbus.cli.app import app  # noqa: PLC0415  (an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OURS:
            raise
        sys.stderr.write(
            f"eventbus: the command line needs {error.name}; pip install 'eventbus-workflows[cli]'\n"
        )
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
