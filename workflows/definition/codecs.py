"""The codecs of one workflow: for its input, its output, and each step's result.

Distributed and inline flows both encode every value with them, so that a value is the same in both.
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import Codec
from workflows.definition.workflow import Workflow

__all__ = ["MAX_VALUE", "Codecs"]

MAX_VALUE = 1024 * 1024
"""The default limit of an input, output or result, in bytes."""


class Codecs:
    """The codecs of one workflow for one size limit; the codec of a step is made when it is first needed."""

    def __init__(self, workflow: Workflow[Any, Any], *, max_bytes: int = MAX_VALUE) -> None:
        """Make the codecs of input and output. Raises DefinitionError for a type that cannot be converted."""
        self.workflow = workflow
        self.max_bytes = max_bytes
        self.input: Codec = Codec(workflow.input, role="payload", owner=workflow.name, max_bytes=max_bytes)
        self.output: Codec = Codec(workflow.output, role="result", owner=workflow.name, max_bytes=max_bytes)
        self._results: dict[str, Codec] = {}

    def result(self, step: str) -> Codec:
        """Return the codec of a step's result; `step` must be a step of the workflow."""
        codec = self._results.get(step)
        if codec is None:
            type_ = self.workflow.steps[step].result
            owner = f"{self.workflow.name}.{step}"
            codec = Codec(type_, role="result", owner=owner, max_bytes=self.max_bytes)
            self._results[step] = codec
        return codec
