"""Groups of errors, such as those of a task group: whether an attempt follows one.

    an error     -> ends its attempts if it is final, an answer, a settled failure of an awaited job, or
                    excluded by the rule
    a group      -> the same of itself, and if all its leaves would end theirs

What must always hold: a group ends its attempts as its leaves would: one leaf that another attempt may mend
is enough for that attempt, because the others may be due to its cancellation, or come again without harm. A
group inside a group is no leaf. A class that `only` or `never` of a rule names counts for the group, and for
each leaf.

Not here: how many attempts a rule allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventbus.model.containment import members_of
from eventbus.model.retry import Retry
from eventbus.telemetry.failure import (
    Recorded,
    is_excluded,
    is_final,
    is_settled_below,
    mark_of,
    mark_recorded,
)

_LEAVES = "__eventbus_leaves__"


def ends_attempts(
    error: BaseException, rule: Retry, is_end: Callable[[BaseException], bool], *, is_undo: bool = False
) -> bool:
    """Return whether no attempt follows an error, however many are left.

    `is_end` is what else ends them, asked of the error and of each leaf. The failure of an awaited job does
    not in a rollback (`is_undo`), which must be done.
    """
    if is_final(error) or is_end(error):
        return True
    leaves = leaves_of(error)
    if not leaves:
        return (not is_undo and is_settled_below(error, rule)) or is_excluded(error, rule)
    if is_excluded(error, Retry(never=rule.never)):
        return True
    if rule.only and not is_excluded(error, Retry(only=rule.only)):  # the group is wanted, whatever is in it
        rule, is_undo = Retry(never=rule.never), True
    return all(ends_attempts(leaf, rule, is_end, is_undo=is_undo) for leaf in leaves)


def leaves_of(error: BaseException) -> Sequence[BaseException]:
    """Return the errors in a group, and in the groups in it; none for an error that is no group.

    Those of a group that another process reported are stand-ins, which have their records.
    """
    known: Sequence[BaseException] | None = mark_of(error, _LEAVES)
    if known is not None:
        return known
    found: list[BaseException] = []
    seen: set[int] = set()
    ahead = list(members_of(error))
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        members = members_of(one)
        ahead += members
        if not members:
            found.append(one)
    return found


def mark_leaves(error: BaseException, leaves: Sequence[Recorded]) -> None:
    """Keep what another process reported of the leaves of a group, in place of which `error` is raised."""
    stand_ins: list[BaseException] = []
    for leaf in leaves:
        stand_in = Exception()
        mark_recorded(stand_in, leaf)
        stand_ins.append(stand_in)
    object.__setattr__(error, _LEAVES, stand_ins)
