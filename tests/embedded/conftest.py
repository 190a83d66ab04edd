"""Folders and users of embedded servers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from drivers.embedded_users import User

from eventbus.store.embedded.server import end_server


@pytest.fixture
def make_user(folder: Path) -> Iterator[Callable[..., User]]:
    """Start a user process; all are killed after the test, and then the server of `folder` ends."""
    with ExitStack() as stack:

        def make(folder: Path | None = folder, **options: str) -> User:
            user = User(folder, **options)
            stack.callback(user.close)
            return user

        yield make


@pytest.fixture
def root() -> Iterator[Path]:
    """A temporary directory whose path leaves room for a socket."""
    with tempfile.TemporaryDirectory(prefix="eb-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


@pytest.fixture
def folder(root: Path) -> Iterator[Path]:
    """A folder for a server; it does not exist yet. After the test, a server that runs in it is ended."""
    folder = root / "data"
    yield folder
    with suppress(FileNotFoundError):
        end_server(folder, force=True)
