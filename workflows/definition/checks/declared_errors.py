"""Declared errors: the errors that are an answer of a workflow instead of its output, such as a refusal.

    declared            an answer: the step has no further attempt, and the caller gets the error as itself
    declared, retry_on  retried by the step's rule; after the last attempt it is an answer too
    not declared        a fault: retried by the step's rule

Rollbacks have no caller to answer, so their retry rule applies to every error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import check_answers, mark_of, shown

_LAST = "_workflows_last"


def check_errors(errors: Any, where: str, option: str = "errors") -> tuple[type[Exception], ...]:
    """Return the declared errors as a tuple; a single class may stand for a list.

    Raises DefinitionError, naming `option` and `where`, for a value that is not an exception class.
    """
    given = cast("Sequence[object]", errors if isinstance(errors, (list, tuple)) else (errors,))
    kinds: list[type[Exception]] = []
    for kind in given:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            told = shown(cast("object", kind))
            raise DefinitionError(
                f"expected {option} of {where} to be a list of exception classes, got: {told}"
            )
        kinds.append(kind)
    return tuple(kinds)


def check_retry_on(
    retry_on: Any, errors: tuple[type[Exception], ...], where: str
) -> tuple[type[Exception], ...]:
    """Return the errors that are retried. Raises DefinitionError for one that is not declared."""
    kinds = check_errors(retry_on, where, "retry_on")
    for kind in kinds:
        if kind not in errors:
            raise DefinitionError(
                f"expected retry_on of {where} to be some of its errors, got: {kind.__name__}; "
                "declare it in errors too, or leave it out: errors that are not declared are retried anyway"
            )
    return kinds


def check_declared(
    given: Mapping[str, Any], rule: Retry | None, where: str
) -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """Return the options `errors` and `retry_on` as tuples. Raises DefinitionError, also if the retry rule
    contradicts them.
    """
    kinds = check_errors(given.get("errors", ()), where)
    retried = check_retry_on(given.get("retry_on", ()), kinds, where)
    check_answers(rule, where, errors=kinds, retry_on=retried)
    return kinds, retried


def mark_last(error: BaseException) -> None:
    """Mark `error` as one that no further attempt follows."""
    object.__setattr__(error, _LAST, True)


def is_last(error: BaseException) -> bool:
    """Tell whether no further attempt follows `error`, whatever the retry rule says."""
    return bool(mark_of(error, _LAST))
