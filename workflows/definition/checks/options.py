"""The checks of options that steps, workflows, durable functions and tasks have in common."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

from eventbus import DefinitionError, Limit, Retry
from eventbus.lowlevel import seconds, shown

OnFailure: TypeAlias = Literal["fail", "ignore"]
"""What the final failure of a step does: the flow fails, or it is recorded and the flow goes on."""

_VERSION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,63}")


def check_retry(retry: Any, where: str) -> Retry | None:
    """Return `retry`. Raises DefinitionError, naming `where`, if it is neither a Retry nor None."""
    if retry is not None and not isinstance(retry, Retry):
        raise DefinitionError(
            f"expected retry of {where} to be a Retry, such as Retry(attempts=5), got: {shown(retry)}"
        )
    return retry


def check_timeout(timeout: Any, where: str) -> float | None:
    """Return a timeout in seconds; None for None and 0. Raises DefinitionError, naming `where`."""
    return None if timeout is None else seconds(timeout, setting=f"timeout of {where}") or None


def check_concurrency(concurrency: Any, where: str, *, option: str = "concurrency") -> int | None:
    """Return `concurrency`. Raises DefinitionError, naming `where`, if it is neither a positive integer nor
    None.
    """
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise DefinitionError(
            f"expected {option} of {where} to be a positive integer, got: {shown(concurrency)}"
        )
    return concurrency


def check_pool(pool: Any, where: str, *, is_async: bool) -> str | None:
    """Return the pool in which a function runs; None for an async one. Raises DefinitionError, naming
    `where`.

    Whether there is such a pool is known when a worker starts.
    """
    if pool is not None and (not isinstance(pool, str) or not pool):
        raise DefinitionError(
            f'expected pool of {where} to be "thread", "process" or the name of a pool, got: {shown(pool)}'
        )
    if not is_async:
        return pool or "thread"
    if pool is not None:
        raise DefinitionError(
            f"{where} is async and runs in the event loop; for pool={pool!r} make it a plain function"
        )
    return None


def check_flag(flag: Any, option: str, where: str) -> bool:
    """Return `flag`. Raises DefinitionError, naming `option` and `where`, if it is no bool."""
    if not isinstance(flag, bool):
        raise DefinitionError(f"expected {option} of {where} to be a bool, got: {shown(flag)}")
    return flag


def check_on_failure(given: Any, where: str) -> OnFailure:
    """Return what a failure does. Raises DefinitionError, naming `where`."""
    if given not in ("fail", "ignore"):
        raise DefinitionError(f"expected on_failure of {where} to be 'fail' or 'ignore', got: {shown(given)}")
    return given


def check_limit(limit: Any, where: str) -> Limit | None:
    """Return `limit`. Raises DefinitionError, naming `where`, if it is neither a Limit nor None, or counts by
    a key.
    """
    if limit is None:
        return None
    if not isinstance(limit, Limit):
        raise DefinitionError(
            f"expected limit of {where} to be a Limit, such as Limit(at_once=5), got: {shown(limit)}"
        )
    if limit.by is not None or limit.each or limit.each_rate:
        raise DefinitionError(
            f"the limit of {where} has by, each or each_rate, which only the limits of events have; "
            "give it at_once and rate"
        )
    return limit


def check_version(version: Any, where: str) -> str | None:
    """Return a version that was given, or None. Raises DefinitionError, naming `where`, for other values."""
    if version is None or (isinstance(version, str) and _VERSION.fullmatch(version)):
        return version
    raise DefinitionError(
        f"expected version of {where} to be 1 to 64 letters, digits, '_', '.', '+' and '-', "
        f"got: {shown(version)}"
    )


def check_most(most: Any, option: str, where: str) -> int:
    """Return the most that one flow may record of something. Raises DefinitionError, naming `option` and
    `where`.
    """
    if isinstance(most, int) and not isinstance(most, bool) and 10 <= most <= 100_000:
        return most
    raise DefinitionError(
        f"expected {option} of {where} to be a whole number from 10 to 100,000, got: {shown(most)}"
    )
