"""Programs and command lines against the shared server, with the keys of one test."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from drivers.program import Program
from typer.testing import CliRunner, Result

from eventbus.cli.app import app


@pytest.fixture
def environment(server_url: str, prefix: str) -> dict[str, str]:
    """The variables that tell a program the server and the key prefix of this test."""
    return {"EVENTBUS_URL": server_url, "EVENTBUS_PREFIX": prefix}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., Program]]:
    """Start programs that end with the test."""
    programs: list[Program] = []

    def start(*words: str, output: int | None = None) -> Program:
        programs.append(Program(*words, environment=environment, output=output))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def invoke(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run a command line in this process, in the folder of these tests."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    was_configured = structlog.is_configured()
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", sys.path[:])
    # As the commands log. In a test they leave what is configured as it is, also what an earlier test has
    # left.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))

    def invoke(*words: str, said: str = "") -> Result:
        return CliRunner(env=environment).invoke(app, list(words), input=said)

    yield invoke
    for name in ("shop", "broken"):
        sys.modules.pop(name, None)
    root.handlers, root.level = handlers, level
    structlog.configure(**configured)
    if not was_configured:
        structlog.reset_defaults()
