"""`eventbus server stop`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from eventbus.store.embedded.server import EmbeddedServer

Invoke = Callable[..., Result]


def test_where_no_server_runs_it_says_so(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("server", "stop", str(tmp_path / "none"))
    assert result.stdout == f"no server runs in {tmp_path / 'none'}\n"
    assert result.exit_code == 0


def test_a_server_in_use_is_ended_by_force_alone(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server = EmbeddedServer(folder)
    server.start()
    try:
        refused = invoke("server", "stop", str(folder))
        assert "is in use by process" in refused.stderr
        assert "--force" in refused.stderr
        assert (refused.stderr.count("\n"), refused.exit_code) == (1, 1)
        assert invoke("server", "stop", str(folder), "--force").stdout == f"server in {folder} ended\n"
    finally:
        server.stop()
    assert "no server runs" in invoke("server", "stop", str(folder)).stdout


def test_without_a_command_it_tells_where_help_is(invoke: Invoke) -> None:
    result = invoke("server")
    assert "see `eventbus server --help`" in result.stderr
    assert result.exit_code == 2
