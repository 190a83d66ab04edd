"""The actor: whose request it is."""

from __future__ import annotations

import msgspec


class Actor(msgspec.Struct, frozen=True):
    """A person or a program that uses the dashboard.

    `name` stands in the audit and beside what the actor does, such as a pause. `roles` are compared with the
    roles that `Dashboard(actions=...)` asks for.
    """

    name: str
    roles: frozenset[str] = frozenset()
