"""Old names of the public API: each works for one release, and warns."""

from __future__ import annotations

import warnings


def warn_of_old_name(old: str, new: str) -> None:
    """Warn that `old` is deprecated, at the place that called the caller of this function."""
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
