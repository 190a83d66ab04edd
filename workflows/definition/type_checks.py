"""Checks of the types of a workflow, whose values must be able to travel, of its version, and of its
retention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from eventbus import DefinitionError, Keep
from eventbus.lowlevel import Codec, check_keep, is_untyped, shown
from workflows.definition.step import Step

_VERSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,63}")


def check_types(name: str, input: Any, output: Any, steps: Iterable[Step[Any, Any]]) -> None:  # noqa: A002
    """Make sure that values of each type of workflow `name` can be sent: input, output and the steps'
    results.

    Raises DefinitionError for a type that cannot be converted.
    """
    Codec(input, role="payload", owner=name, max_bytes=0)
    Codec(output, role="result", owner=name, max_bytes=0)
    judged: list[Any] = []
    for step in steps:
        kind = step.result
        if step.is_each:
            Codec(step.item, role="payload", owner=f"{name}.{step.name}", max_bytes=0)
        # Only the last few types are compared: the cost stays linear for thousands of steps.
        if step.workflow is None and not is_untyped(kind) and kind not in judged[-20:]:
            Codec(kind, role="result", owner=f"{name}.{step.name}", max_bytes=0)
            judged.append(kind)


def check_kept(options: Mapping[str, Any], where: str) -> tuple[Keep | None, Keep | None]:
    """Return how long completed and failed flows are kept, None for what is not given. Raises
    DefinitionError, naming `where`.
    """
    completed, failed = options.get("keep_completed"), options.get("keep_failed")
    return check_keep("keep_completed", completed, where), check_keep("keep_failed", failed, where)


def check_version(version: Any, where: str) -> str | None:
    """Return a version that was given, or None. Raises DefinitionError, naming `where`, for other values."""
    if version is None or (isinstance(version, str) and _VERSION.fullmatch(version)):
        return version
    raise DefinitionError(
        f"expected version of {where} to be 1 to 64 letters, digits, '_', '.', '+' and '-', "
        f"got: {shown(version)}"
    )
