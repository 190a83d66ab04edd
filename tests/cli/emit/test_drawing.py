"""Output on a terminal: the progress bar of `emit` and the table of `demo`."""

from __future__ import annotations

import io
import sys

import pytest

from eventbus.cli.commands.board import Board
from eventbus.cli.commands.meter import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that can draw; tests set it themselves, since pytest sets its own streams before each."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_the_bar_counts_lines_and_failures(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with Meter(1000, prints=True) as meter:
        meter.advance(1200, 3, 500)
    assert "1,203 lines" in terminal.getvalue()
    assert "3 failed" in terminal.getvalue()


def test_no_bar_where_results_go_to_the_same_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with Meter(1000, prints=True) as meter:
        meter.advance(1, 0, 500)
    assert terminal.getvalue() == ""


def test_the_table_shows_outcomes_and_then_what_is_too_long_for_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    board = Board("heading", ["first", "second"])
    with board:
        board.show("first", "well done", detail="a long story")
        board.show("second", "broken", is_error=True)
    board.close("The end.")
    text = terminal.getvalue()
    assert text.index("well done") < text.index("a long story") < text.index("The end.")
    assert board.has_failed
