"""The codecs of one workflow: its input, its output, and each step's result.

Both runs, in this process and distributed, send every value through them, so that it has the same type
and value in each.
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import Codec
from workflows.definition import Workflow

__all__ = ["MAX_VALUE", "Codecs"]

MAX_VALUE = 1024 * 1024
"""The longest input, output or result in bytes, unless told otherwise."""


class Codecs:
    """Made once for a workflow and a limit of sizes; codecs of steps when they are first needed."""

    def __init__(self, workflow: Workflow[Any, Any], *, max_bytes: int = MAX_VALUE) -> None:
        """Raises DefinitionError for an input or output type that cannot be converted."""
        self.workflow = workflow
        self.max_bytes = max_bytes
        self.input = Codec(workflow.input, role="payload", owner=workflow.name, max_bytes=max_bytes)
        self.output = Codec(workflow.output, role="result", owner=workflow.name, max_bytes=max_bytes)
        self._results: dict[str, Codec] = {}

    def result(self, step: str) -> Codec:
        """Return the codec of a step's result; `step` is a step of the workflow."""
        codec = self._results.get(step)
        if codec is None:
            type_ = self.workflow.steps[step].result
            owner = f"{self.workflow.name}.{step}"
            codec = Codec(type_, role="result", owner=owner, max_bytes=self.max_bytes)
            self._results[step] = codec
        return codec
