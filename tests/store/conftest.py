"""The store's Python, on the shared server or on fakes."""

from __future__ import annotations

from leaks import no_leaks, planted

__all__ = ["no_leaks", "planted"]
