"""Handlers for pools of processes, with their events."""

from __future__ import annotations

import os
import threading

from eventbus import Event

__all__ = ["crunch", "named", "run"]

crunch = Event("crunch", payload=int, result=list[int])
named = Event("named", payload=int, result=list[int])


def run(number: int) -> list[int]:
    """Return the number, and in which process and thread this ran."""
    return [number, os.getpid(), threading.get_ident()]
