"""What is said of a flow is the same wherever its steps run."""

from __future__ import annotations

import pytest

from workflows import Workflow


@pytest.fixture(params=["local", "spread"], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the flows of the test local, or spread."""
    mode: str = request.param
    if mode == "spread":
        monkeypatch.setattr(Workflow, "spreads", property(lambda workflow: bool(workflow.steps)))
    return mode
