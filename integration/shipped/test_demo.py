"""`eventbus demo`, as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.programs import HERE, Program

Run = Callable[..., Program]


def test_the_demo_shows_results_and_ends_by_itself(run: Run, tmp_path: Path) -> None:
    demo = run("demo")
    assert demo.wait_ended() == 0, demo.story()
    text = demo.out.decode()
    assert demo.err == ""
    assert "\x1b" not in text, "piped: plain lines"
    for said in (
        "receipt r-o-1",
        "billing",
        "attempt 3",
        "delayed",
        "LookupError: nothing in stock",
        "Traceback",
    ):
        assert said in text
    assert "emissions a second" in text
    assert not list(HERE.glob(".eventbus"))
