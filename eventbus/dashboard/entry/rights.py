"""Rights: who may do what to which event.

What must always hold: each action is asked for here, by pages and by the API alike; what is not clearly
allowed is refused. The rules are asked in this order, and the first that refuses counts: the read-only
switch, the `actions` of the event, `may`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from eventbus.dashboard.entry.actor import Actor
from eventbus.errors import ConfigError

Action: TypeAlias = Literal[
    "queue.read",
    "queue.pause",
    "queue.limit",
    "queue.clean",
    "job.read",
    "job.cancel",
    "job.promote",
    "job.edit",
    "job.retry",
    "job.remove",
    "event.emit",
    "payload.read",
    "payload.reveal",
    "flow.read",
    "flow.cancel",
    "flow.retry",
    "flow.signal",
    "schedule.read",
    "schedule.edit",
    "schedule.run",
    "server.read",
    "audit.read",
    "operation.start",
    "operation.stop",
]
"""What rights are given for."""

ACTIONS: tuple[str, ...] = get_args(Action)
READS = frozenset(
    {"queue.read", "job.read", "payload.read", "flow.read", "schedule.read", "server.read", "audit.read"}
)
"""The actions that a dashboard with `read_only` allows. To reveal a payload is none of them."""


class Target(msgspec.Struct, frozen=True):
    """What an action is about. `kind` is queue, job, flow, schedule or server; `id` is empty for all of them.

    `event` is the name of its event, `name@group` for a group's queue, `workflow.<name>` for a flow.
    """

    kind: Literal["queue", "job", "flow", "schedule", "server"]
    id: str = ""
    event: str = ""


_FLOWS = "workflow."


def reads_of(target: Target, *, jobs: bool = False) -> tuple[Action, ...]:
    """Return what one must be allowed to read to know that the target exists; with `jobs` also that of the
    jobs of a queue.

    What is about an event or a workflow exists only for those who may see that: who may not read the flows
    of a workflow sees
    neither its queues nor a schedule of it.
    """
    flows: tuple[Action, ...] = ("flow.read",) if target.event.startswith(_FLOWS) else ()
    if target.kind == "flow":
        return ("flow.read",)
    if target.kind == "server":
        return ("server.read",)
    own: tuple[Action, ...] = ("schedule.read",) if target.kind == "schedule" else ()
    if jobs or target.kind == "job":
        own = (*own, "job.read")
    return ("queue.read", *own, *flows)


May: TypeAlias = Callable[[Actor, Action, Target], "bool | str"]
"""Returns True for what is allowed, and False or the reason, a text, for what is not."""

ActionRules: TypeAlias = Mapping[str, Mapping[str, "bool | str"]]
"""Maps a glob of events to actions: True for everybody, False for nobody, or the role that an actor must
have.
"""


class Rights:
    """Decides whether an actor may do something."""

    def __init__(self, *, may: May | None, actions: ActionRules, is_read_only: bool) -> None:
        """Raises ConfigError for an action that does not exist, because nobody would notice that it forbids
        nothing.
        """
        for glob, rules in actions.items():
            _check(glob, rules)
        self._may = may
        self._actions = actions
        self.is_read_only = is_read_only

    def refusal(self, actor: Actor, action: Action, target: Target) -> str:
        """Return why the actor may not do it; empty if the actor may."""
        if self.is_read_only and action not in READS:
            return "this dashboard is read-only"
        rule = self._rule(action, target.event)
        if rule is False:
            return f"{action} is switched off here"
        if isinstance(rule, str) and rule not in actor.roles:
            return f"{action} needs the role {rule}"
        answer: Any = True if self._may is None else self._may(actor, action, target)
        if answer is True:
            return ""
        return answer if isinstance(answer, str) and answer else f"{actor.name} may not use {action} here"

    def _rule(self, action: str, event: str) -> bool | str:
        """Return the rule of the last glob that matches and names the action; True if none does."""
        found: bool | str = True
        for glob, rules in self._actions.items():
            if glob == "*" or fnmatchcase(event, glob) or fnmatchcase(event.partition("@")[0], glob):
                found = rules.get(action, found)
        return found


def _check(glob: str, rules: Mapping[str, bool | str]) -> None:
    for action, rule in rules.items():
        if action not in ACTIONS:
            raise ConfigError(
                f"there is no action {action!r}, which actions[{glob!r}] names; "
                f"there are: {', '.join(ACTIONS)}",
                setting="actions",
            )
        if not isinstance(rule, (bool, str)) or rule == "":  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"expected True, False or a role for {action} in actions[{glob!r}], got: {rule!r}",
                setting="actions",
            )
