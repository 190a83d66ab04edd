"""Fixtures for real servers and processes. Each test has its own servers and ends what it started."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.collecting import begin_elsewhere, put_in_order
from drivers.hanging import pytest_pyfunc_call, pytest_timeout_set_timer
from harness.backends import KINDS, MISSING, Backend
from harness.journal import Journal
from harness.leftovers import Leftovers
from harness.programs import Program, clean_environment
from harness.proxy import Proxy
from harness.sites import Site

__all__ = ["pytest_pyfunc_call", "pytest_timeout_set_timer"]

_SETS = {
    # The kinds of server that a test runs on, if this machine has them.
    "all": ("valkey", "redis7", "redis6"),
    "each": ("valkey", "redis7", "redis6"),  # one of them, always the same; `tox -e faults` has all
    "both": ("valkey", "redis7"),  # so here
    "one": ("redis7", "valkey"),  # the first of them
    "valkey": ("valkey",),  # what no Redis of ours can do
}
_SAMPLED = Path(__file__).parent / "faults"
"""Faults at many points, which differ little: `tox -e integration` has half of these tests, always
the same.
"""
_WANTED = os.environ.get("EVENTBUS_TEST_SERVERS", "")
"""`every`: tests of the sets `each` and `both` run on every kind of server.

`rest`: only what `tox -e integration` left out.
"""


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [f"servers: {', '.join(f'{name} ({path})' for name, path in KINDS.items()) or 'none'}"]
    if MISSING:
        lines.append(f"servers not found, their tests are not collected: {', '.join(MISSING)}")
    return lines


def pytest_configure(config: pytest.Config) -> None:
    begin_elsewhere(config)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let a socket that is not closed be told, without a failure of a test that may have opened none.

    One was, once in some runs, and whose it was is not known. The tests of `tests/` fail for what the library
    leaves.
    """
    put_in_order(items)
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))
        if _SAMPLED in item.path.parents and zlib.crc32(item.nodeid.encode()) % 2:
            item.add_marker("long")
    if _WANTED == "rest":
        usual = [item for item in items if _is_usual(item)]
        config.hook.pytest_deselected(items=usual)
        items[:] = [item for item in items if item not in set(usual)]


def _is_usual(item: pytest.Item) -> bool:
    """Return whether `tox -e integration` runs the test, on this kind of server."""
    if item.get_closest_marker("long") is not None:
        return False
    assert isinstance(item, pytest.Function)
    kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
    return kind is None or kind in _usual_kinds(item.function.__name__, item.get_closest_marker("servers"))


def _usual_kinds(name: str, marker: pytest.Mark | None) -> list[str]:
    """Return the kinds of server on which `tox -e integration` runs the test."""
    which = marker.args[0] if marker is not None else "both"
    kinds = [name for name in _SETS[which] if name in KINDS]
    if which == "one":
        return kinds[:1]
    if which in ("each", "both") and kinds:
        return [kinds[zlib.crc32(name.encode()) % len(kinds)]]
    return kinds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the kinds of server that this machine has."""
    if "kind" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("servers")
    kinds = _usual_kinds(metafunc.function.__name__, marker)
    if _WANTED and (marker is None or marker.args[0] in ("each", "both")):
        kinds = [name for name in _SETS[marker.args[0] if marker is not None else "both"] if name in KINDS]
    metafunc.parametrize("kind", kinds)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[Leftovers]:
    """All that the test starts. The test fails if anything of it is left."""
    leftovers = Leftovers()
    yield leftovers
    leftovers.end()
    gc.collect()  # what was not closed is told here, and not in a later test


@pytest.fixture
def make_server(kind: str, leftovers: Leftovers) -> Callable[..., Backend]:
    """Start a server for this test, with options of its command line."""

    def make(*options: str, **more: Any) -> Backend:
        backend = Backend(kind, *options, **more)
        leftovers.backends.append(backend)
        backend.start()
        return backend

    return make


@pytest.fixture
def server(make_server: Callable[..., Backend]) -> Backend:
    """A server for this test, with default options."""
    return make_server()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal in which the handlers of `event_app` write what they do."""
    journal = Journal(tmp_path / "journal")
    yield journal
    journal.close()


@pytest.fixture
def gates(tmp_path: Path) -> Callable[[str], None]:
    """Open a gate, for which handlers of `event_app` wait."""
    return lambda name: (tmp_path / name).touch()


_KEEP = "100000,7 days"
"""Tests compare results with records, and a quick machine has more than the usual 1,000."""


@pytest.fixture
def run(tmp_path: Path, leftovers: Leftovers) -> Callable[..., Program]:
    """Run `python -m eventbus ...`, with settings such as `lease="2s"`; ended after the test."""
    made = leftovers.programs

    def run_program(
        *words: str, url: str = "", module: str = "eventbus", release: Path | None = None, **settings: object
    ) -> Program:
        """`release` is a folder with another release of the package."""
        settings = {"keep_completed": _KEEP, **settings}
        named = {f"EVENTBUS_{name.upper()}": str(value) for name, value in settings.items()}
        environment = clean_environment() | named | {"EVENTBUS_TEST_FOLDER": str(tmp_path)}
        if url:
            environment["EVENTBUS_URL"] = url
        if release is not None:
            environment["PYTHONPATH"] = str(release)
        name = f"{len(made)}-{words[0] if words else module}"
        program = Program(name, ["-m", module, *words], folder=tmp_path, environment=environment)
        made.append(program)
        return program

    return run_program


@pytest.fixture
def start_worker(run: Callable[..., Program]) -> Callable[..., Program]:
    """Start `eventbus worker apps.event_app:provider`; returns when it is ready."""

    def start(backend: Backend, *words: str, **settings: object) -> Program:
        program = run("worker", "apps.event_app:provider", *words, url=backend.url, **settings)
        program.wait_logged("worker ready")
        return program

    return start


@pytest.fixture
def proxy(server: Backend, tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy", server.socket)
    proxy.start()
    yield proxy
    proxy.close()


@pytest.fixture
def start_behind(run: Callable[..., Program], proxy: Proxy) -> Callable[..., Program]:
    """Start a worker whose connections lead through the proxy."""

    def start(**settings: object) -> Program:
        worker = run("worker", "apps.event_app:provider", url=proxy.url, **settings)
        worker.wait_logged("worker ready")
        return worker

    return start


@pytest.fixture
def site(
    server: Backend, proxy: Proxy, tmp_path: Path, journal: Journal, run: Callable[..., Program]
) -> Site:
    """A worker of `flow_app` that may be killed, and the checks of its flows."""
    return Site(server, proxy, tmp_path, journal, run)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto` means one worker more than processors, because most tests here wait for faults to pass."""
    return (os.cpu_count() or 1) + 1
