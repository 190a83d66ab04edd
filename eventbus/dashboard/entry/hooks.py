"""Hooks: what a program does before and after an action, such as a check of its own, or a note to a
channel.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from eventbus.dashboard.entry.actor import Actor
from eventbus.dashboard.entry.rights import ACTIONS, Target
from eventbus.errors import ConfigError
from eventbus.model.containment import contained, contained_await
from eventbus.telemetry.logging import get_logger

Before: TypeAlias = Callable[[Actor, str, Target], "str | Awaitable[str | None] | None"]
"""Returns why the action must not happen, or None."""

After: TypeAlias = Callable[[Actor, str, Target, str], "Awaitable[None] | None"]
"""Is told of an action and its outcome: changed, unchanged or failed."""

_log = get_logger("eventbus.dashboard")


class Hooks:
    """Calls the hooks of an action, and those of `*`."""

    def __init__(self, before: Mapping[str, Before], after: Mapping[str, After]) -> None:
        """Raises ConfigError for an action that does not exist."""
        for setting, hooks in (("before", before), ("after", after)):
            for action in hooks:
                if action != "*" and action not in ACTIONS:
                    raise ConfigError(
                        f"there is no action {action!r}, which {setting} names; "
                        f"there are: {', '.join(ACTIONS)}",
                        setting=setting,
                    )
        self._before = before
        self._after = after

    async def refusal(self, actor: Actor, action: str, target: Target) -> str:
        """Return why a hook forbids the action; empty if none does."""
        for name in ("*", action):
            if name in self._before:
                answer: Any = self._before[name](actor, action, target)
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer is not None:
                    return str(answer) or "a check of this program forbids it"
        return ""

    async def tell(self, actor: Actor, action: str, target: Target, outcome: str) -> None:
        """Tell the hooks of an action that is over. What they raise is logged, because the action
        stays done.
        """
        for name in ("*", action):
            if name in self._after:
                try:
                    told: Any = contained(self._after[name], actor, action, target, outcome)
                    if inspect.isawaitable(told):
                        await contained_await(told)
                except Exception:  # noqa: BLE001  (a hook may raise anything)
                    _log.exception("hook of the dashboard failed", action=action)
