"""The codecs of one workflow: for its input, its output, and each step's result.

Distributed and inline flows both encode every value with them, so that a value is the same in both.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import msgspec

from eventbus import PayloadError
from eventbus.lowlevel import Codec, shown
from workflows.definition.flow_definition import AnyDefinition, most_of_input
from workflows.definition.outline import GraphOutline
from workflows.errors import StepFailed
from workflows.records.ids import item_name, split_item
from workflows.records.records import StepRecord, revive_error

MAX_VALUE = 1024 * 1024
"""The default limit of an input, output or result, in bytes."""


class FlowCodecs(NamedTuple):
    """The codecs of input and output of a definition of any kind."""

    input: Codec
    output: Codec


@functools.lru_cache(maxsize=1024)
def flow_codecs(definition: AnyDefinition, max_bytes: int = MAX_VALUE) -> FlowCodecs:
    """Return the codecs of input and output for this size limit. Raises DefinitionError for a type that
    cannot be converted.
    """
    name, most = definition.name, most_of_input(definition, max_bytes)
    return FlowCodecs(
        Codec(definition.input, role="payload", owner=name, max_bytes=most),
        Codec(definition.output, role="result", owner=name, max_bytes=max_bytes),
    )


class ResultCodec(Protocol):
    """Converts the results of one step, which are of `type`."""

    type: Any

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises PayloadError."""
        ...

    def decode(self, data: Any) -> Any:
        """Return the value of `data`, which is JSON. Raises PayloadError."""
        ...


class Codecs:
    """The codecs of one workflow for one size limit; the codec of a step is made when it is first needed."""

    def __init__(self, workflow: GraphOutline, *, max_bytes: int = MAX_VALUE) -> None:
        """Make the codecs of input and output. Raises DefinitionError for a type that cannot be converted."""
        self.workflow = workflow
        self.max_bytes = max_bytes
        self.input: Codec = Codec(workflow.input, role="payload", owner=workflow.name, max_bytes=max_bytes)
        self.output: Codec = Codec(workflow.output, role="result", owner=workflow.name, max_bytes=max_bytes)
        self._results: dict[str, ResultCodec] = {}
        self._items: dict[str, Codec] = {}

    def result(self, step: str) -> ResultCodec:
        """Return the codec of the result of a step, which must be one of the workflow, or of an item
        of one.
        """
        name, index = split_item(step)
        known = f"{name}[]" if index >= 0 else name
        codec = self._results.get(known)
        if codec is None:
            definition = self.workflow.steps[name]
            type_ = definition.result if index < 0 else definition.item_result
            owner = f"{self.workflow.name}.{name}"
            if index < 0 and definition.keeps_failures:
                codec = FailuresCodec(self, name)
            else:
                codec = Codec(type_, role="result", owner=owner, max_bytes=self.max_bytes)
            self._results[known] = codec
        return codec

    def item(self, step: str) -> Codec:
        """Return the codec of the items of a step that runs for each item of a list."""
        codec = self._items.get(step)
        if codec is None:
            owner = f"{self.workflow.name}.{step}"
            type_ = self.workflow.steps[step].item
            codec = Codec(type_, role="payload", owner=owner, max_bytes=self.max_bytes)
            self._items[step] = codec
        return codec


class FailuresCodec:
    """Reads the result of a step whose failed items are ignored."""

    def __init__(self, codecs: Codecs, step: str) -> None:
        self._workflow = codecs.workflow
        self._step = step
        self.type: Any = Any  # its JSON is that of records
        self._results = codecs.result(item_name(step, 0))

    def encode(self, value: Any) -> bytes:
        """Raise PayloadError: the result is made of the records of the items."""
        raise PayloadError(f"the result of step {self._step!r} is made of its items, got: {shown(value)}")

    def decode(self, data: Any) -> list[Any]:
        """Return the results of the items, with a StepFailed for each that failed. Raises PayloadError."""
        try:
            records = msgspec.json.decode(data, type=list[StepRecord])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise PayloadError(f"the result of step {self._step!r} cannot be read: {error}") from error
        return [self._read(index, record) for index, record in enumerate(records)]

    def _read(self, index: int, record: StepRecord) -> Any:
        if not record.failure:
            return self._results.decode(memoryview(record.result))
        name, workflow = item_name(self._step, index), self._workflow
        error = revive_error(
            record.failure, owner=f"{workflow.name}.{name}", job=name, errors=workflow.errors
        )
        return StepFailed(step=name, workflow=workflow.name, error=error, is_item=True)
